package preflight

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet's file names plugins of the kubelet that runs if it is newer than the kubelet's socket.
func TestLookAtCheckpoint(t *testing.T) {
	dir := t.TempDir()
	ignored := func(r device.ResourceName) bool { return r == "vendor.example/licence" }
	if c := lookAtCheckpoint(dir, ignored); c.Err != nil || c.Current || len(c.Resources) > 0 {
		t.Errorf("without a file: %+v", c)
	}
	data, err := checkpoint.File{Healthy: map[device.ResourceName][]device.ID{
		"vendor.example/gpu": {"a", "b"}, "vendor.example/nic": nil, "vendor.example/licence": {"x"},
	}}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	file, listens := filepath.Join(dir, checkpoint.Name), filepath.Join(dir, "kubelet.sock")
	write := func(path string, data []byte, at int64) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Unix(at, 0), time.Unix(at, 0)); err != nil {
			t.Fatal(err)
		}
	}
	write(file, data, 100)
	if c := lookAtCheckpoint(dir, ignored); c.Current {
		t.Error("without a kubelet's socket the file counts as its own")
	}
	for at, current := range map[int64]bool{99: true, 100: true, 101: false} {
		write(listens, nil, at)
		c := lookAtCheckpoint(dir, ignored)
		if c.Err != nil || c.Current != current || len(c.Resources) != 2 || c.Healthy["vendor.example/gpu"] != 2 || c.Healthy["vendor.example/nic"] != 0 {
			t.Errorf("a kubelet that has been there since %d: %+v", at, c)
		}
	}
	write(file, []byte("{"), 100)
	if c := lookAtCheckpoint(dir, ignored); c.Err == nil {
		t.Errorf("of half a file: %+v", c)
	}
}

// The resources of this node that dra.resources names, from each source.
func TestClaimed(t *testing.T) {
	f := Facts{
		Daemon:     &Daemon{Serves: map[device.ResourceName]bool{"vendor.example/gpu": true, "vendor.example/lost": false, "other.example/a": true}, Devices: map[device.ResourceName]int{"vendor.example/gpu": 40}},
		Kubelet:    Kubelet{Devices: map[device.ResourceName]int{"vendor.example/gpu": 2, "vendor.example/nic": 3}},
		Checkpoint: Checkpoint{Resources: []device.ResourceName{"vendor.example/old"}},
	}
	got := claimed(config.DRA{Resources: []string{"vendor.example/*", "exact.example/b"}}, f)
	want := map[device.ResourceName]int{"vendor.example/gpu": 40, "vendor.example/lost": 0, "vendor.example/nic": 3, "vendor.example/old": 0, "exact.example/b": 0}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestNUMANodes(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"node0", "node1", "power"} {
		if err := os.MkdirAll(filepath.Join(dir, "devices/system/node", name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if got := numaNodes(dir); got != 2 {
		t.Errorf("%d NUMA nodes, want 2", got)
	}
}
