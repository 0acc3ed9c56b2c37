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
			return podresources.KubeletsDevices(ctx, c.PodResources.KubeletSocket, c.PodResources.Takeover)
		}
	}
	return k
}

// run asks the kubelet once, and again while the file names devices or pods have some. It calls changed when assigned returns another value.
func (k *kubelet) run(ctx context.Context, changed func()) error {
	often := rate.NewLimiter(rate.Every(askPause), askBurst)
	for k.ask != nil && often.Wait(ctx) == nil {
		before, file := k.assigned(), k.read()
		word, err := k.ask(ctx)
		if ctx.Err() != nil {
			break
		}
		again := k.answered(file, word, err)
		if k.assigned() != before {
			changed()
		}
		select {
		case <-ctx.Done():
		case <-k.wake:
		case <-loops.At(again):
		}
	}
	<-ctx.Done()
	return nil
}

// answered takes over an answer, and returns when to ask again; zero: when the file is another one.
func (k *kubelet) answered(file *checkpoint.File, word map[string]map[string]device.Choice, err error) (again time.Time) {
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
	if err != nil || len(k.namedLocked()) > 0 || len(k.now.Resources) > 0 {
		again = time.Now().Add(askPause)
	}
	return again
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
	if changed := (err == nil) != (k.fault == nil); changed || err != nil {
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

// namedLocked returns the resources of which the file names pods.
func (k *kubelet) namedLocked() map[device.ResourceName]bool {
	all := map[device.ResourceName]bool{}
	for _, e := range k.file.Entries {
		all[e.Resource] = true
	}
	return all
}

// deriveLocked makes of file and answer what others see. What is not known since the file or the kubelet's answer has changed may be assigned.
func (k *kubelet) deriveLocked() {
	named := k.namedLocked()
	now := &device.Kubelets{Resources: map[device.ResourceName]bool{}, Pods: k.file.ByPod(), Word: k.answer.word}
	for _, all := range k.answer.word {
		for _, choice := range all {
			for r := range choice {
				if !k.ignored(r) {
					now.Resources[r] = true
				}
			}
		}
	}
	sure := k.answer.file == k.file && k.answer.err == nil
	if !sure {
		maps.Copy(now.Resources, named)
	}
	if !sure && k.ask != nil {
		maps.Copy(now.Resources, k.now.Resources)
	}
	if !reflect.DeepEqual(now, k.now) {
		k.now = now
	}
	k.say(named, sure)
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
	file, all := k.read(), map[device.ResourceName]bool{}
	maps.Copy(all, k.assigned().Resources)
	for r := range file.Healthy {
		all[r] = true
	}
	return all
}

// say sets the limits: what an operator should know. named are the resources of which the file names pods; sure reports that the kubelet has said of which this
// is so.
func (k *kubelet) say(named map[device.ResourceName]bool, sure bool) {
	var all []device.Limit
	add := func(text string) {
		all = append(all, device.Limit{Release: "the kubelet's device manager", Text: text})
	}
	if k.fault != nil {
		add(fmt.Sprintf("devmgrd cannot read %s, and may assign devices that containers have by it: drain the node: %v", k.path, k.fault))
	}
	if k.answer.err != nil && len(k.now.Resources) > 0 {
		add(fmt.Sprintf("devmgrd cannot ask it which pods have devices of %v: %v", slices.Sorted(maps.Keys(k.now.Resources)), k.answer.err))
	}
	if sure && len(k.now.Resources) > 0 {
		add(fmt.Sprintf("pods have devices of %v by it; devmgrd assigns others once these pods have ended: drain the node", slices.Sorted(maps.Keys(k.now.Resources))))
	}
	var stale []device.ResourceName // only ended pods have entries
	for r := range named {
		if _, registered := k.file.Healthy[r]; sure && !registered && !k.now.Resources[r] {
			stale = append(stale, r)
		}
	}
	slices.Sort(stale)
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
