package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// askPause is the pause between two questions to the kubelet about the same file.
const askPause = 5 * time.Second

// A kubelet is what the kubelet's own device manager still has, as its checkpoint says, on a node that came to devmgrd without an import: an import moves
// the file aside.
type kubelet struct {
	path string // of its checkpoint
	// ask returns the resources of which containers have devices by the kubelet, and has it forget pods that have ended.
	ask     func(context.Context) (map[device.ResourceName]bool, error)
	ignored func(device.ResourceName) bool // they stay with the kubelet
	faults  *rate.Sometimes
	log     *slog.Logger

	mu    locks.Mutex[locks.Leaf]
	seen  fs.FileInfo      // the file as it was read; nil: there was none
	file  *checkpoint.File // the last one that could be read; replaced, never edited
	fault error            // of the last reading
	last  answer           // replaced, never edited; only manages replaces it
}

// An answer is the kubelet's latest about one file.
type answer struct {
	file  *checkpoint.File // nil: it has not been asked
	at    time.Time
	used  map[device.ResourceName]bool
	err   error
	stale []device.ResourceName // only ended pods have entries in the file; ascending
}

// newKubelet returns nil if devmgrd serves in the kubelet's directory: the file there is its own.
func newKubelet(c config.Config, log *slog.Logger) *kubelet {
	if c.Plugins.KubeletDir == c.Plugins.SocketDir {
		return nil
	}
	ignored := pods.Ignores(c.Plugins.IgnoredResources)
	return &kubelet{path: filepath.Join(c.Plugins.KubeletDir, checkpoint.Name), ignored: ignored, faults: loops.Seldom(), log: log, file: &checkpoint.File{}, ask: func(ctx context.Context) (map[device.ResourceName]bool, error) {
		if c.PodResources.KubeletSocket == "" {
			return nil, nil
		}
		return podresources.KubeletsResources(ctx, c.PodResources.KubeletSocket, c.PodResources.Takeover)
	}}
}

// read returns the file, which it reads again when it has changed. A kubelet replaces it in one step.
func (k *kubelet) read() *checkpoint.File {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := lstat(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if k.seen != nil || k.fault != nil {
			k.seen, k.file, k.fault = nil, &checkpoint.File{}, nil
		}
		return k.file
	case err != nil:
		k.seen = nil // once it can be looked at, it is read
	case k.seen != nil && os.SameFile(seen, k.seen) && seen.ModTime().Equal(k.seen.ModTime()) && seen.Size() == k.seen.Size():
		return k.file
	default:
		var file checkpoint.File
		file, err = checkpoint.ReadWatched(k.path)
		k.seen = seen
		if err == nil {
			k.file = &file
		}
	}
	k.fault = err
	if err != nil {
		k.faults.Do(func() { k.log.Warn("cannot read the kubelet's checkpoint", "err", err) })
	}
	return k.file
}

func lstat(path string) (fs.FileInfo, error) {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(name)
}

// containers returns the devices that the kubelet's device manager has assigned: containers that it made still have them.
func (k *kubelet) containers() map[device.Container]map[device.ResourceName][]device.ID {
	return k.read().Select(func(r device.ResourceName) bool { return !k.ignored(r) }).ByContainer()
}

// manages returns the resources of which the kubelet fails new pods, since it believes that a plugin of its own serves them: those that are registered
// in its file, which it takes out five minutes after the plugin has left, and those of which a container has devices by it. It asks the
// kubelet for these: the file has pods that ended long ago, which the kubelet remembers until it is asked, and writes until then.
func (k *kubelet) manages(ctx context.Context) map[device.ResourceName]bool {
	file := k.read()
	all, left := map[device.ResourceName]bool{}, map[device.ResourceName]bool{}
	for r := range file.Healthy {
		all[r] = true
	}
	for _, e := range file.Entries {
		if !k.ignored(e.Resource) {
			left[e.Resource] = true
		}
	}
	k.mu.Lock()
	last := k.last
	k.mu.Unlock()
	switch {
	case len(left) == 0:
		last = answer{}
	case last.file != file || time.Since(last.at) >= askPause:
		last = answer{file: file, at: time.Now()}
		last.used, last.err = k.ask(ctx)
		if last.err != nil {
			k.faults.Do(func() { k.log.Warn("cannot ask kubelet which pods have devices", "err", last.err) })
		}
	}
	last.stale = nil
	for r := range left {
		switch {
		case last.err != nil || last.used[r]: // a kubelet that does not answer starts no pods either
			all[r] = true
		case !all[r]:
			last.stale = append(last.stale, r)
		}
	}
	slices.Sort(last.stale)
	k.mu.Lock()
	k.last = last
	k.mu.Unlock()
	return all
}

// limits returns what an operator should know of the file.
func (k *kubelet) limits() (all []device.Limit) {
	k.mu.Lock()
	last, fault := k.last, k.fault
	k.mu.Unlock()
	add := func(text string) {
		all = append(all, device.Limit{Release: "the kubelet's device manager", Text: text})
	}
	if fault != nil {
		add(fmt.Sprintf("devmgrd cannot read %s, and may assign devices that containers have by it: drain the node: %v", k.path, fault))
	}
	if last.err != nil {
		add(fmt.Sprintf("devmgrd cannot ask it which pods of %s still run, and shows no free devices of their resources: %v", k.path, last.err))
	}
	if len(last.stale) > 0 {
		add(fmt.Sprintf("%s names ended pods with devices of %v; a kubelet that restarts fails new pods that request them: remove the file while the kubelet is stopped and no pod has devices by it", k.path, last.stale))
	}
	return all
}
