package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
)

// asideSuffix follows the name of the kubelet's directory when it has been moved aside.
const asideSuffix = ".before-devmgrd"

// freeName returns an unused path: name, or name with a number after it.
func freeName(name string) string {
	free := name
	for i := 2; ; i++ {
		if _, err := os.Lstat(free); err != nil {
			return free
		}
		free = fmt.Sprintf("%s-%d", name, i)
	}
}

// setAside moves the kubelet's directory away, and creates a new one with the entries that stay with the kubelet.
//
// A kubelet that finds its checkpoint claims all resources in it. Plugins that watch the directory of a kubelet register
// again when the kubelet starts. The kubelet would then publish its own capacity, assign the same devices, and refuse pods
// for minutes after the plugins' pods are recreated. The plugins' containers hold the old directory, wherever it is moved,
// and never see the new one.
func setAside(dir string, stays checkpoint.File) (aside string, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	aside = freeName(dir + asideSuffix)
	draft, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".new-")
	if err != nil {
		return "", err
	}
	// The kubelet must not find the directory empty: see internal/nodestatus, which keeps this file.
	note := fmt.Sprintf("The previous directory is %s, since %s: devmgrd has taken over the kubelet's assignments.\n"+
		"devmgrd keeps this file here so that the kubelet does not find this directory empty when it starts.\n", aside, time.Now().UTC().Format(time.RFC3339))
	err = errors.Join(os.Chmod(draft, info.Mode().Perm()), os.WriteFile(filepath.Join(draft, "devmgrd.txt"), []byte(note), 0o644))
	if err == nil && !stays.Empty() {
		var data []byte
		if data, err = stays.Encode(); err == nil {
			err = checkpoint.Write(filepath.Join(draft, checkpoint.Name), data)
		}
	}
	if err == nil {
		err = os.Rename(dir, aside)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(draft))
	}
	return aside, os.Rename(draft, dir)
}

// socketsBelow returns the sockets in a directory tree, except those that cannot be read.
func socketsBelow(dir string) []string {
	var found []string
	_ = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type() == fs.ModeSocket {
			found = append(found, path)
		}
		return nil
	})
	return found
}
