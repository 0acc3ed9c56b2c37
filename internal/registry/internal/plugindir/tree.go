package plugindir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const (
	ownerFile   = "owner.json"
	socketsDir  = "device-plugins"
	registryDir = "plugins_registry"

	maxOwner = 4 << 10 // bytes of an owner.json
)

// A Tree is the directory of all plugin pods' directories.
type Tree struct{ root string }

// At returns the tree at root. It reads no file.
func At(root string) *Tree { return &Tree{root: filepath.Clean(root)} }

// names matches UIDs that can be directory names, as those of Kubernetes are: UUIDs, and hashes for static pods.
var names = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z._-]{0,127}$`)

// Of returns a pod's directory, whether it exists or not. It fails if the UID cannot be a directory name.
func (t *Tree) Of(pod device.Pod) (device.PluginDir, error) {
	if !names.MatchString(string(pod.UID)) {
		return device.PluginDir{}, fmt.Errorf("the UID %.80q of pod %s cannot be a directory's name", pod.UID, pod)
	}
	dir := t.path(pod.UID)
	return device.PluginDir{Owner: pod, Sockets: filepath.Join(dir, socketsDir), Registry: filepath.Join(dir, registryDir)}, nil
}

func (t *Tree) path(uid device.PodUID) string { return filepath.Join(t.root, string(uid)) }

// owner is the content of owner.json.
type owner struct {
	UID       device.PodUID `json:"uid"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
}

// Make creates a pod's directory, or completes it.
func (t *Tree) Make(pod device.Pod) (device.PluginDir, error) {
	dir, err := t.Of(pod)
	if err != nil {
		return dir, err
	}
	for _, path := range []string{t.root, t.path(pod.UID)} {
		if _, err := shareddir.Make(path, 0o700); err != nil {
			return dir, err
		}
	}
	if err := errors.Join(shareddir.MakeShared(dir.Sockets, 0o755), shareddir.MakeShared(dir.Registry, 0o755)); err != nil {
		return dir, err
	}
	text, err := json.Marshal(owner{pod.UID, pod.Namespace, pod.Name})
	if err != nil {
		return dir, err
	}
	if len(text) > maxOwner {
		return dir, fmt.Errorf("the names of pod %.80q have %d bytes; at most %d are taken", pod.String(), len(text), maxOwner)
	}
	d, err := shareddir.Open(t.path(pod.UID))
	if err != nil {
		return dir, err
	}
	defer d.Close()
	return dir, d.ReplaceFile(ownerFile, text)
}

// Known creates the tree, returns its complete directories, and removes incomplete ones. It leaves a directory that it cannot read,
// since a container may have it.
func (t *Tree) Known() ([]device.PluginDir, error) {
	if _, err := shareddir.Make(t.root, 0o700); err != nil {
		return nil, fmt.Errorf("directory for plugin pods: %w", err)
	}
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return nil, err
	}
	var all []device.PluginDir
	var failed error
	for _, e := range entries {
		switch dir, err := t.read(e.Name()); {
		case err == nil:
			all = append(all, dir)
		case errors.Is(err, errIncomplete):
			failed = errors.Join(failed, removeAll(filepath.Join(t.root, e.Name())))
		default:
			failed = errors.Join(failed, err)
		}
	}
	return all, failed
}

// errIncomplete reports a directory that no container has: it was never complete, or is being removed.
var errIncomplete = errors.New("it is not complete")

// read returns the directory of that name, if it is complete.
func (t *Tree) read(name string) (device.PluginDir, error) {
	d, err := shareddir.Open(filepath.Join(t.root, name))
	if errors.Is(err, syscall.ENOTDIR) {
		return device.PluginDir{}, errIncomplete
	}
	if err != nil {
		return device.PluginDir{}, err
	}
	defer d.Close()
	text, err := d.ReadFile(ownerFile, maxOwner)
	if errors.Is(err, fs.ErrNotExist) {
		return device.PluginDir{}, errIncomplete
	}
	if err != nil {
		return device.PluginDir{}, err
	}
	var o owner
	if err := json.Unmarshal(text, &o); err != nil || string(o.UID) != name {
		return device.PluginDir{}, errIncomplete
	}
	return t.Of(device.Pod{UID: o.UID, Namespace: o.Namespace, Name: o.Name})
}

// Remove removes a pod's directory with everything in it. The pod's containers have ended.
func (t *Tree) Remove(uid device.PodUID) error {
	// Without owner.json the rest counts as incomplete after a crash.
	if err := os.Remove(filepath.Join(t.path(uid), ownerFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var err error
	for range removeTries {
		if err = removeAll(t.path(uid)); err == nil {
			return nil
		}
		time.Sleep(removePause)
	}
	return err
}

const (
	removeTries = 5 // something may still be written there, such as the checkpoint for its readers
	removePause = 100 * time.Millisecond
)
