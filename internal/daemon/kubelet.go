package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
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

const (
	// askPause is the pause between two questions to the kubelet.
	askPause = 5 * time.Second
	// askBurst is how many questions may follow one another, one for each new file.
	askBurst = 5
)

// A kubelet is what the kubelet's own device manager has assigned, on a node that came to devmgrd without an import, or where resources are ignored no longer.
// Its checkpoint says so at once, but others can write there; the kubelet itself says it when it is asked.
type kubelet struct {
	path string // of the checkpoint
	// ask returns the devices that pods have by the kubelet, by namespace/name and by container name, and has it forget pods that have ended.
	// nil: PodResources of the kubelet is not asked.
	ask     func(context.Context) (map[string]map[string]device.Choice, error)
	ignored func(device.ResourceName) bool // they stay with the kubelet
	faults  *rate.Sometimes
	log     *slog.Logger
	wake    chan struct{} // the file is another one

	mu     locks.Mutex[locks.Leaf]
	seen   fs.FileInfo      // the file as it was read; nil: there was none
	file   *checkpoint.File // the last one that could be read, or an empty one; replaced, never edited
	fault  error            // of the last reading
	answer answer
	now    *device.Kubelets // by file and answer; replaced when it changes

	said atomic.Pointer[[]device.Limit]
}

// An answer is the kubelet's latest.
type answer struct {
	file *checkpoint.File // to which it was asked; nil: it has not been asked
	err  error
	word map[string]map[string]device.Choice // the latest without an error; nil: there was none
}

// newKubelet returns nil if devmgrd serves in the kubelet's directory: the file there is its own.
func newKubelet(c config.Config, log *slog.Logger) *kubelet {
	if c.Plugins.KubeletDir == c.Plugins.SocketDir {
		return nil
	}
	k := &kubelet{
		path: filepath.Join(c.Plugins.KubeletDir, checkpoint.Name), ignored: pods.Ignores(c.Plugins.IgnoredResources), faults: loops.Seldom(), log: log,
		wake: make(chan struct{}, 1), file: &checkpoint.File{}, now: &device.Kubelets{},
	}
	if c.PodResources.KubeletSocket != "" && c.Kubernetes.Mode != config.NoCluster {
		k.ask = func(ctx context.Context) (map[string]map[string]device.Choice, error) {
			return podresources.AssignedByKubelet(ctx, c.PodResources.KubeletSocket, c.PodResources.Takeover)
		}
	}
	return k
}

// run asks the kubelet once, and again while the file names devices or pods have some. It calls changed when assigned returns another value.
func (k *kubelet) run(ctx context.Context, changed func()) error {
	often := rate.NewLimiter(rate.Every(askPause), askBurst)
	for told := k.assigned(); often.Wait(ctx) == nil; {
		file := k.read()
		select {
		case <-k.wake: // for this file
		default:
		}
		if k.ask != nil {
			word, err := k.ask(ctx)
			if ctx.Err() != nil {
				break
			}
			k.answered(file, word, err)
		}
		if now := k.assigned(); now != told {
			told = now
			changed()
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-loops.At(k.again()):
		}
	}
	<-ctx.Done()
	return nil
}

// answered takes over an answer.
func (k *kubelet) answered(file *checkpoint.File, word map[string]map[string]device.Choice, err error) {
	if err != nil {
		k.faults.Do(func() { k.log.Warn("cannot ask kubelet which pods have devices", "err", err) })
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.answer.file, k.answer.err = file, err
	if err == nil {
		k.answer.word = word
	}
	k.deriveLocked()
}

// again returns when to ask the next time; zero: when the file is another one.
func (k *kubelet) again() (at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.answer.err != nil || len(k.file.Entries) > 0 || len(k.usedLocked()) > 0 {
		at = time.Now().Add(askPause)
	}
	return at
}

// read returns the file, which it reads again when it has changed. A kubelet replaces it in one step.
func (k *kubelet) read() *checkpoint.File {
	k.mu.Lock()
	defer k.mu.Unlock()
	seen, err := lstat(k.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
		if k.seen != nil || k.fault != nil {
			k.seen = nil
			k.takeLocked(checkpoint.File{})
		}
	case err != nil:
		k.seen = nil // once it can be looked at, it is read
	case k.seen != nil && os.SameFile(seen, k.seen) && seen.ModTime().Equal(k.seen.ModTime()) && seen.Size() == k.seen.Size():
		return k.file
	default:
		var file checkpoint.File
		file, err = checkpoint.ReadWatched(k.path)
		k.seen = seen
		switch {
		case err == nil:
			k.takeLocked(file)
		case errors.As(err, new(*fs.PathError)): // it may be read the next time
			k.seen = nil
		}
	}
	if (err == nil) != (k.fault == nil) {
		loops.Signal(k.wake) // what the file hides, the kubelet says
	}
	if err != nil || k.fault != nil {
		k.fault = err
		k.deriveLocked()
	}
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

func (k *kubelet) takeLocked(f checkpoint.File) {
	f = f.Select(func(r device.ResourceName) bool { return !k.ignored(r) })
	k.file = &f
	k.deriveLocked()
	loops.Signal(k.wake)
}

// usedLocked returns the resources of which pods have devices, in the kubelet's word.
func (k *kubelet) usedLocked() map[device.ResourceName]bool {
	used := (&device.Kubelets{Word: k.answer.word}).Used()
	maps.DeleteFunc(used, func(r device.ResourceName, _ bool) bool { return k.ignored(r) })
	return used
}

// deriveLocked makes of file and answer what others see.
func (k *kubelet) deriveLocked() {
	if now := (&device.Kubelets{Pods: k.file.ByPod(), Word: k.answer.word, Asked: k.ask != nil}); !reflect.DeepEqual(now, k.now) {
		k.now = now
	}
	k.sayLocked()
}

// assigned returns what the kubelet's device manager has assigned: the same value until that changes.
func (k *kubelet) assigned() *device.Kubelets {
	k.read()
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.now
}

// manages returns the resources of which the kubelet fails new pods, since it believes that a plugin of its own serves them: those that are registered
// in its file, which it takes out five minutes after the plugin has left, and those of which pods have devices by it.
func (k *kubelet) manages() map[device.ResourceName]bool {
	file := k.read()
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.usedLocked()
	for r := range file.Healthy {
		all[r] = true
	}
	return all
}

// sayLocked sets the limits: what an operator should know.
func (k *kubelet) sayLocked() {
	var all []device.Limit
	add := func(text string) {
		all = append(all, device.Limit{Release: "the kubelet's device manager", Text: text})
	}
	used, silent := k.usedLocked(), map[device.ResourceName]bool{}
	for _, e := range k.file.Entries {
		if _, registered := k.file.Healthy[e.Resource]; !registered && !used[e.Resource] {
			silent[e.Resource] = true
		}
	}
	if k.fault != nil {
		add(fmt.Sprintf("devmgrd cannot read %s, and may assign devices that containers have by it: drain the node: %v", k.path, k.fault))
	}
	if k.answer.err != nil && len(used)+len(silent) > 0 {
		add(fmt.Sprintf("devmgrd cannot ask it which pods have devices: %v", k.answer.err))
	}
	if len(used) > 0 {
		add(fmt.Sprintf("pods have devices of %s by it; devmgrd assigns others once these pods have ended: drain the node", abridged(used)))
	}
	if len(silent) > 0 && k.answer.file == k.file && k.answer.err == nil {
		add(fmt.Sprintf("%s names pods with devices of %s of which it says nothing; a kubelet that restarts fails new pods that request them: remove the file while the kubelet is stopped and no pod has devices by it", k.path, abridged(silent)))
	}
	k.said.Store(&all)
}

// abridged names a few resources: others can write as many as they like.
func abridged(all map[device.ResourceName]bool) string {
	const most = 8
	names := slices.Sorted(maps.Keys(all))
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%v and %d more", names[:most], more)
	}
	return fmt.Sprint(names)
}

func (k *kubelet) limits() []device.Limit {
	if all := k.said.Load(); all != nil {
		return *all
	}
	return nil
}
