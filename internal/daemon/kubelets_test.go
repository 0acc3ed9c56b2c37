package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

// What the kubelet has assigned counts, but for resources that stay with it. A file that it would not write is not believed.
func TestKubelets_File_IsReadWithinLimits(t *testing.T) {
	t.Parallel()
	var c config.Config
	c.Plugins.KubeletDir, c.Plugins.IgnoredResources = t.TempDir(), []string{"theirs.example/*"}
	d := &daemon{config: c, log: slog.New(slog.DiscardHandler), metrics: newMetrics()}
	path := filepath.Join(c.Plugins.KubeletDir, checkpoint.Name)
	main := device.Container{Pod: "uid", Name: "main"}
	entry := func(r device.ResourceName, answer []byte) checkpoint.Entry {
		return checkpoint.Entry{Container: main, Resource: r, Devices: []device.Device{{ID: "7"}}, Answer: answer}
	}
	write := func(entries ...checkpoint.Entry) {
		t.Helper()
		data, err := checkpoint.File{Entries: entries}.Encode()
		if err == nil {
			err = checkpoint.Write(path, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := d.kubelets()
	if got := read(); got != nil {
		t.Errorf("without a file: %v", got)
	}
	write(entry("vendor.example/gpu", nil), entry("theirs.example/nic", nil))
	if got, want := read(), (map[device.Container]map[device.ResourceName][]device.ID{main: {"vendor.example/gpu": {"7"}}}); !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
	write(entry("vendor.example/gpu", make([]byte, maxCheckpoint)))
	if got := read(); got != nil {
		t.Errorf("of a long file: %d containers", len(got))
	}
	if err := os.WriteFile(path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(); len(got) != 0 {
		t.Errorf("of a damaged file: %v", got)
	}
	d.config.Plugins.SocketDir = c.Plugins.KubeletDir
	if d.kubelets() != nil {
		t.Error("the file in devmgrd's own directory is devmgrd's")
	}
}
