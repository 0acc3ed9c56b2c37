package reclaim

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
)

// networked has a Gate wait for the end of these files, for that long.
func networked(limit time.Duration, paths ...string) func(*Config) {
	return func(c *Config) {
		c.Openers = func(device.ResourceName) bool { return false }
		c.Networks, c.NetworkTimeout = func(device.PodUID) []string { return paths }, limit
	}
}

// await waits until the Gate has changed its mind, and what it says of a pod begins with want; empty: the devices are free.
func await(t *testing.T, g *Gate, d device.Departure, want string) {
	t.Helper()
	late := time.After(time.Minute)
	for {
		r := g.Release(d)
		if r == nil && want == "" || r != nil && want != "" && strings.HasPrefix(r.String(), want) {
			return
		}
		select {
		case <-g.Changed():
		case <-late:
			t.Fatalf("it says %v, want %q", r, want)
		}
	}
}

func networkFiles(t *testing.T, names ...string) (paths []string) {
	dir := t.TempDir()
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
		if err := os.WriteFile(paths[len(paths)-1], nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// The devices are free as soon as the last network namespace of the pod's sandboxes is gone, and then only if nothing else is missing.
func TestNetworks_LastOneGone_DevicesAreFree(t *testing.T) {
	t.Parallel()
	paths := networkFiles(t, "a", "b")
	g := start(t, &world{}, networked(time.Hour, paths...))
	d := gone("former", gpu, 0)
	await(t, g, d, "the pod's network is being torn down: "+paths[0])
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	await(t, g, d, "the pod's network is being torn down: "+paths[1])
	if r := g.Release(d); r == nil || r.Underway || r.Failed != "" {
		t.Errorf("with one of two: %+v", r)
	}
	if err := os.Remove(paths[1]); err != nil {
		t.Fatal(err)
	}
	await(t, g, d, "")
}

// After an error, such as an overflow of the kernel's queue, the watch goes on, and what it may have missed is looked at.
func TestNetworks_WatchFails_IsContinued(t *testing.T) {
	t.Parallel()
	paths := networkFiles(t, "a", "b", "c")
	w := &world{}
	g := prepare(w, networked(time.Hour, paths...))
	failures := make(chan error)
	g.networks.start = func() (*dirwatch.Watcher, error) {
		watcher, err := dirwatch.Start()
		if err == nil {
			watcher.Errors = failures
		}
		return watcher, err
	}
	begin(t, g, w)
	d := gone("former", gpu, 0)
	for i, next := range append(paths[1:], "") {
		await(t, g, d, "the pod's network is being torn down: "+paths[i])
		if err := os.Remove(paths[i]); err != nil {
			t.Fatal(err)
		}
		if next == "" {
			break
		}
		await(t, g, d, "the pod's network is being torn down: "+next)
		select {
		case failures <- dirwatch.ErrOverflow:
		case <-time.After(time.Minute):
			t.Fatal("the error is not read: no event follows it")
		}
	}
	await(t, g, d, "")
}

// A network namespace that stays does not keep the devices for ever.
func TestNetworks_Late_DevicesAreFree(t *testing.T) {
	t.Parallel()
	g := start(t, &world{}, networked(100*time.Millisecond, networkFiles(t, "a")...))
	await(t, g, gone("former", gpu, 0), "")
}

// What is not there, or cannot be seen, keeps nothing. So does a pod with the host's network.
func TestNetworks_None_DevicesAreFree(t *testing.T) {
	t.Parallel()
	g := start(t, &world{}, networked(time.Hour, "/nowhere/a"))
	await(t, g, gone("former", gpu, 0), "")
	expect(t, start(t, &world{}, networked(time.Hour)), gone("other", gpu, 0), "free")
}

// A network namespace in a directory that cannot be watched is looked at each second.
func TestNetworks_NotWatched_AreLookedAt(t *testing.T) {
	t.Parallel()
	paths := networkFiles(t, "a")
	n := networks{}
	if left, watched := n.left(paths); len(left) != 1 || watched {
		t.Errorf("%q, %v", left, watched)
	}
}

// A search begins when the network is gone, not before.
func TestNetworks_ThenOpeners(t *testing.T) {
	t.Parallel()
	w := &world{}
	paths := networkFiles(t, "a")
	g := start(t, w, networked(time.Hour, paths...), func(c *Config) { c.Openers = func(device.ResourceName) bool { return true } })
	d := gone("former", gpu, 0)
	await(t, g, d, "the pod's network")
	w.mu.Lock()
	searches := len(w.searches)
	w.mu.Unlock()
	if searches > 0 {
		t.Errorf("searched %d times", searches)
	}
	if err := os.Remove(paths[0]); err != nil {
		t.Fatal(err)
	}
	await(t, g, d, "")
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.searches) != 1 {
		t.Errorf("searched %d times", len(w.searches))
	}
}
