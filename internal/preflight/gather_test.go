package preflight

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
