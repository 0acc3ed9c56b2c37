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
	"sync/atomic"
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
	// nil: PodResources of the kubelet is not asked.
	ask     func(context.Context) (map[device.ResourceName]bool, error)
	ignored func(device.ResourceName) bool // they stay with the kubelet
	faults  *rate.Sometimes
	log     *slog.Logger

	mu    locks.Mutex[locks.Leaf]
	seen  fs.FileInfo      // the file as it was read; nil: there was none
	file  *checkpoint.File // the last one that could be read, or an empty one; replaced, never edited
	has   *device.Kubelets // what it assigns; replaced with it; nil: it has not been looked for
	fault error            // of the last reading

	last answer                         // only manages uses it
	said atomic.Pointer[[]device.Limit] // by manages
}

// An answer is the kubelet's latest about one file.
type answer struct {
	file *checkpoint.File // nil: it has not been asked
	at   time.Time
	used map[device.ResourceName]bool
	err  error
}

// newKubelet returns nil if devmgrd serves in the kubelet's directory: the file there is its own.
func newKubelet(c config.Config, log *slog.Logger) *kubelet {
	if c.Plugins.KubeletDir == c.Plugins.SocketDir {
		return nil
	}
	k := &kubelet{path: filepath.Join(c.Plugins.KubeletDir, checkpoint.Name), ignored: pods.Ignores(c.Plugins.IgnoredResources), faults: loops.Seldom(), log: log}
	if c.PodResources.KubeletSocket != "" {
		k.ask = func(ctx context.Context) (map[device.ResourceName]bool, error) {
			return podresources.KubeletsResources(ctx, c.PodResources.KubeletSocket, c.PodResources.Takeover)
		}
	}
	return k
}

// read returns the file, which it reads again when it has changed, and why it could not be read the last time. A kubelet replaces it in one step.
func (k *kubelet) read() (*checkpoint.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := lstat(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if k.has == nil || k.seen != nil || k.fault != nil {
			k.seen, k.fault = nil, nil
			k.take(checkpoint.File{})
		}
		return k.file, k.fault
	case err != nil:
		k.seen = nil // once it can be looked at, it is read
	case k.seen != nil && os.SameFile(seen, k.seen) && seen.ModTime().Equal(k.seen.ModTime()) && seen.Size() == k.seen.Size():
		return k.file, k.fault
	default:
		var file checkpoint.File
		file, err = checkpoint.ReadWatched(k.path)
		k.seen = seen
		switch {
		case err == nil:
			k.take(file)
		case errors.As(err, new(*fs.PathError)): // it may be read the next time
			k.seen = nil
		}
	}
	k.fault = err
	if err != nil {
		if k.has == nil {
			k.take(checkpoint.File{})
			k.has.Unread = true
		}
		k.faults.Do(func() { k.log.Warn("cannot read the kubelet's checkpoint", "err", err) })
	}
	return k.file, k.fault
}

func lstat(path string) (fs.FileInfo, error) {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(name)
}

// take replaces the file.
func (k *kubelet) take(f checkpoint.File) {
	k.file, k.has = &f, &device.Kubelets{Pods: f.Select(func(r device.ResourceName) bool { return !k.ignored(r) }).ByPod()}
}

// assigned returns what the kubelet's device manager has assigned: containers that it makes have it.
func (k *kubelet) assigned() *device.Kubelets {
	k.read()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has
}

// manages returns the resources of which the kubelet fails new pods, since it believes that a plugin of its own serves them: those that are registered
// in its file, which it takes out five minutes after the plugin has left, and those of which a container has devices by it. It asks the
// kubelet for these: the file has pods that ended long ago, which the kubelet remembers until it is asked, and writes until then.
func (k *kubelet) manages(ctx context.Context) map[device.ResourceName]bool {
	file, fault := k.read()
	all, left := map[device.ResourceName]bool{}, map[device.ResourceName]bool{}
	for r := range file.Healthy {
		all[r] = true
	}
	for _, e := range file.Entries {
		if !k.ignored(e.Resource) {
			left[e.Resource] = true
		}
	}
	switch {
	case len(left) == 0 || k.ask == nil:
		k.last, left = answer{}, nil
	case k.last.file != file || time.Since(k.last.at) >= askPause:
		k.last = answer{file: file, at: time.Now()}
		k.last.used, k.last.err = k.ask(ctx)
		if k.last.err != nil {
			k.faults.Do(func() { k.log.Warn("cannot ask kubelet which pods have devices", "err", k.last.err) })
		}
	}
	var stale []device.ResourceName // only ended pods have entries
	for r := range left {
		switch {
		case k.last.err != nil || k.last.used[r]: // a kubelet that does not answer starts no pods either
			all[r] = true
		case !all[r]:
			stale = append(stale, r)
		}
	}
	slices.Sort(stale)
	k.say(fault, k.last.err, stale)
	return all
}

// say sets the limits: what an operator should know of the file.
func (k *kubelet) say(unread, unasked error, stale []device.ResourceName) {
	var all []device.Limit
	add := func(text string) {
		all = append(all, device.Limit{Release: "the kubelet's device manager", Text: text})
	}
	if unread != nil {
		add(fmt.Sprintf("devmgrd cannot read %s, and may assign devices that containers have by it: drain the node: %v", k.path, unread))
	}
	if unasked != nil {
		add(fmt.Sprintf("devmgrd cannot ask it which pods of %s still run, and shows no free devices of their resources: %v", k.path, unasked))
	}
	if len(stale) > 0 {
		add(fmt.Sprintf("%s names ended pods with devices of %v; a kubelet that restarts fails new pods that request them: remove the file while the kubelet is stopped and no pod has devices by it", k.path, stale))
	}
	k.said.Store(&all)
}

func (k *kubelet) limits() []device.Limit {
	if all := k.said.Load(); all != nil {
		return *all
	}
	return nil
}
