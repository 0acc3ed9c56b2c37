package daemon

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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

// What the kubelet has assigned counts, but for resources that stay with it. A damaged file does not replace one that was read.
func TestKubelet_File_IsReadWhenItChanges(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	if got := k.assigned(); len(got.Pods) != 0 || got.Unread {
		t.Errorf("without a file: %v", got)
	}
	write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil), entryOf("theirs.example/nic", nil)}})
	first := k.assigned()
	if want := (&device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{mainOfPod.Pod: {mainOfPod.Name: {gpu: {"7"}}}}}); !reflect.DeepEqual(first, want) {
		t.Errorf("read %v, want %v", first, want)
	}
	if k.assigned() != first {
		t.Error("the same file is another value")
	}
	if err := os.WriteFile(k.path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := k.assigned(); got != first {
		t.Errorf("once the file is damaged: %v", got)
	}
	k.manages(t.Context())
	if all := k.limits(); len(all) != 1 || !strings.Contains(all[0].Text, "cannot read "+k.path) {
		t.Errorf("limits of a damaged file: %v", all)
	}
	var c config.Config
	c.Plugins.KubeletDir, c.Plugins.SocketDir = "/same", "/same"
	if newKubelet(c, k.log) != nil {
		t.Error("the file in devmgrd's own directory is devmgrd's")
	}
}

// A file that cannot be read at the first look does not count as none.
func TestKubelet_DamagedFromTheStart_IsUnread(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	if err := os.WriteFile(k.path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if first := k.assigned(); !first.Unread || k.assigned() != first {
		t.Errorf("damaged: %v", first)
	}
	if all := k.manages(t.Context()); len(all) != 0 {
		t.Errorf("the kubelet manages %v", all)
	}
	write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil)}})
	if got := k.assigned(); got.Unread || len(got.Pods) != 1 {
		t.Errorf("once it can be read: %v", got)
	}
}

// The kubelet has a resource while a plugin is registered, and five minutes longer; and while a pod has devices by it. Pods that have ended it forgets
// when it is asked: in memory, and in its file when it writes that for another reason. A kubelet that restarts reads the file.
func TestKubelet_Manages_UntilItHasForgotten(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	var used map[device.ResourceName]bool
	var failure error
	asked := 0
	k.ask = func(context.Context) (map[device.ResourceName]bool, error) { asked++; return used, failure }
	const theirs device.ResourceName = "theirs.example/nic"
	entries := []checkpoint.Entry{entryOf(gpu, nil), entryOf(nic, nil), entryOf(theirs, nil)}
	registered := map[device.ResourceName][]device.ID{gpu: {}}
	hook := make(chan struct{}) // which reads meanwhile
	go func() {
		defer close(hook)
		for range 100 {
			k.assigned()
			k.limits()
		}
	}()
	again := func() { k.last.at = time.Time{} }
	steps := []struct {
		about string
		do    func()
		has   []device.ResourceName
		asked int
		limit string
	}{
		{"no file", func() {}, nil, 0, ""},
		{"a plugin without healthy devices", func() { write(checkpoint.File{Healthy: registered}) }, []device.ResourceName{gpu}, 0, ""},
		{"a pod with devices of a resource that stays with the kubelet", func() { write(checkpoint.File{Entries: entries[2:]}) }, nil, 0, ""},
		{"pods, and no answer", func() { failure = errors.New("away"); write(checkpoint.File{Healthy: registered, Entries: entries}) }, []device.ResourceName{gpu, nic}, 1, "away"},
		{"at once again", func() {}, []device.ResourceName{gpu, nic}, 0, "away"},
		{"the pods have devices", func() { again(); failure, used = nil, map[device.ResourceName]bool{nic: true, gpu: true} }, []device.ResourceName{gpu, nic}, 1, ""},
		{"they have ended, before the kubelet writes its file", func() { again(); used = map[device.ResourceName]bool{nic: true} }, []device.ResourceName{gpu, nic}, 1, ""},
		{"the plugin is forgotten", func() { write(checkpoint.File{Entries: entries}) }, []device.ResourceName{nic}, 1, "[vendor.example/gpu]"},
		{"all pods have ended", func() { again(); used = nil }, nil, 1, "[vendor.example/gpu vendor.example/nic]"},
		{"the kubelet has restarted", func() { again(); used = map[device.ResourceName]bool{gpu: true} }, []device.ResourceName{gpu}, 1, "[vendor.example/nic]"},
		{"another file", func() { write(checkpoint.File{}) }, nil, 0, ""},
	}
	t.Cleanup(func() { <-hook })
	for _, s := range steps {
		s.do()
		before := asked
		if got := slices.Sorted(maps.Keys(k.manages(t.Context()))); !slices.Equal(got, s.has) || asked-before != s.asked {
			t.Errorf("%s: the kubelet has %v, want %v; asked %d times, want %d", s.about, got, s.has, asked-before, s.asked)
		}
		if all := k.limits(); (s.limit != "") != (len(all) == 1) || len(all) == 1 && !strings.Contains(all[0].Text, s.limit) {
			t.Errorf("%s: limits: %v", s.about, all)
		}
	}
}
