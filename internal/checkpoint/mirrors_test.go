package checkpoint_test

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// podDirs are directories of plugin pods.
type podDirs struct {
	mu      sync.Mutex
	all     []device.PluginDir
	changed chan struct{}
}

func (d *podDirs) Directories() ([]device.PluginDir, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all, d.changed
}

func (d *podDirs) set(all ...device.PluginDir) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = all
	close(d.changed)
	d.changed = make(chan struct{})
}

// shown returns the resources in a directory's file.
func shown(dir string) []device.ResourceName {
	data, err := os.ReadFile(filepath.Join(dir, checkpoint.Name))
	if err != nil {
		return nil
	}
	f, err := checkpoint.Decode(data)
	if err != nil {
		return []device.ResourceName{"damaged"}
	}
	resources := maps.Clone(f.Healthy)
	for _, e := range f.Entries {
		resources[e.Resource] = nil
	}
	return slices.Sorted(maps.Keys(resources))
}

// All resources are in the common file, and those of a pod's plugins in the pod's. What changes is written, and a directory that is
// gone is no error.
func TestMirrors(t *testing.T) {
	t.Parallel()
	v := newView(holding("u", true, held("u", "main", share(gpu, "0"), share(nic, "x"))))
	v.offers[nic] = device.Offer{Reported: true, Inventory: device.Inventory{Resource: nic, Devices: []device.Device{{ID: "x", Healthy: true}}}}
	common, a, b := t.TempDir(), t.TempDir(), t.TempDir()
	dirs := &podDirs{changed: make(chan struct{})}
	log := &lines{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- checkpoint.NewMirrors(common, dirs, v, slog.New(slog.NewTextHandler(log, nil))).Run(ctx)
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if log.count("level=ERROR") != 0 {
			t.Errorf("logged: %s", log.text.String())
		}
	}()
	eventually := func(dir string, want ...device.ResourceName) {
		t.Helper()
		plugintest.Eventually(t, "the file is right", func() bool { return slices.Equal(shown(dir), want) })
	}
	eventually(common, gpu, nic)
	dirs.set(device.PluginDir{Sockets: a}, device.PluginDir{Sockets: b, Resources: []device.ResourceName{nic}})
	plugintest.Eventually(t, "there is a file", func() bool { _, err := os.Stat(filepath.Join(a, checkpoint.Name)); return err == nil })
	if got := shown(a); len(got) != 0 {
		t.Errorf("a pod without a plugin sees %q", got)
	}
	eventually(b, nic)
	dirs.set(device.PluginDir{Sockets: a, Resources: []device.ResourceName{gpu}}, device.PluginDir{Sockets: b, Resources: []device.ResourceName{nic}})
	eventually(a, gpu)
	if err := os.RemoveAll(b); err != nil {
		t.Fatal(err)
	}
	v.hold(holding("u", true, held("u", "main", share(gpu, "1"))))
	dirs.set(device.PluginDir{Sockets: a, Resources: []device.ResourceName{gpu}})
	plugintest.Eventually(t, "the assignment is written", func() bool {
		data, err := os.ReadFile(filepath.Join(a, checkpoint.Name))
		if err != nil {
			return false
		}
		f, err := checkpoint.Decode(data)
		return err == nil && len(f.Entries) == 1 && f.Entries[0].Devices[0].ID == "1"
	})
}
