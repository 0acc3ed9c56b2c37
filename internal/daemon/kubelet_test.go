package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

const nic device.ResourceName = "vendor.example/nic"

// kubeletFile makes a kubelet with its directory, and a function that writes its file.
func kubeletFile(t *testing.T) (k *kubelet, write func(checkpoint.File)) {
	t.Helper()
	var c config.Config
	c.Plugins.KubeletDir, c.Plugins.IgnoredResources = t.TempDir(), []string{"theirs.example/*"}
	k = newKubelet(c, slog.New(slog.DiscardHandler))
	return k, func(f checkpoint.File) {
		t.Helper()
		data, err := f.Encode()
		if err == nil {
			err = checkpoint.Write(k.path, data)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

var mainOfPod = device.Container{Pod: "uid", Name: "main"}

func entryOf(r device.ResourceName, answer []byte) checkpoint.Entry {
	return checkpoint.Entry{Container: mainOfPod, Resource: r, Devices: []device.Device{{ID: "7"}}, Answer: answer}
}

// What the kubelet has assigned counts, but for resources that stay with it. A file that it would not write is not believed.
func TestKubelet_File_IsReadWhenItChanges(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	if got := k.containers(); len(got) != 0 {
		t.Errorf("without a file: %v", got)
	}
	write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil), entryOf("theirs.example/nic", nil)}})
	for range 2 {
		if got, want := k.containers(), (map[device.Container]map[device.ResourceName][]device.ID{mainOfPod: {gpu: {"7"}}}); !reflect.DeepEqual(got, want) {
			t.Errorf("read %v, want %v", got, want)
		}
	}
	if err := os.WriteFile(k.path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := k.containers(); len(got) != 0 {
		t.Errorf("of a damaged file: %v", got)
	}
	var c config.Config
	c.Plugins.KubeletDir, c.Plugins.SocketDir = "/same", "/same"
	if newKubelet(c, k.log) != nil {
		t.Error("the file in devmgrd's own directory is devmgrd's")
	}
}

// The kubelet has a resource while a plugin is registered, and five minutes longer; and while a pod has devices by it. Pods that have ended it forgets
// when it is asked, which happens once.
func TestKubelet_Manages_UntilItHasForgotten(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	var used map[device.ResourceName]bool
	var failure error
	asked := 0
	k.ask = func(context.Context) (map[device.ResourceName]bool, error) { asked++; return used, failure }
	entries := []checkpoint.Entry{entryOf(gpu, nil), entryOf(nic, nil)}
	registered := map[device.ResourceName][]device.ID{gpu: {}}
	hook := make(chan struct{}) // which reads meanwhile
	go func() {
		defer close(hook)
		for range 100 {
			k.containers()
		}
	}()
	steps := []struct {
		about string
		do    func()
		has   []device.ResourceName
		asked int
	}{
		{"no file", func() {}, nil, 0},
		{"a plugin without healthy devices", func() { write(checkpoint.File{Healthy: registered}) }, []device.ResourceName{gpu}, 0},
		{"a pod, and no answer", func() { failure = errors.New("away"); write(checkpoint.File{Healthy: registered, Entries: entries}) }, []device.ResourceName{gpu, nic}, 1},
		{"a pod has devices", func() { failure, used = nil, map[device.ResourceName]bool{nic: true, gpu: true} }, []device.ResourceName{gpu, nic}, 1},
		{"the plugin is forgotten", func() { write(checkpoint.File{Entries: entries}) }, []device.ResourceName{gpu, nic}, 1},
		{"one pod has ended", func() { used = map[device.ResourceName]bool{nic: true} }, []device.ResourceName{nic}, 1},
		{"all pods have ended", func() { used = nil }, nil, 1},
		{"all is known", func() {}, nil, 0},
		{"another file", func() { write(checkpoint.File{Entries: entries[:1]}) }, nil, 1},
	}
	t.Cleanup(func() { <-hook })
	for _, s := range steps {
		s.do()
		before := asked
		if got := slices.Sorted(maps.Keys(k.manages(t.Context()))); !slices.Equal(got, s.has) || asked-before != s.asked {
			t.Errorf("%s: the kubelet has %v, want %v; asked %d times, want %d", s.about, got, s.has, asked-before, s.asked)
		}
	}
}
