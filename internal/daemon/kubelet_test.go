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
	"testing/synctest"
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

// says is the kubelet's word: containers of one pod with devices of these resources.
func says(all ...device.ResourceName) map[string]map[string]device.Choice {
	choice := device.Choice{}
	for _, r := range all {
		choice[r] = []device.ID{"7"}
	}
	return map[string]map[string]device.Choice{"ns/pod": {"main": choice}}
}

// What the kubelet has assigned counts, but for resources that stay with it. A damaged file does not replace one that was read.
func TestKubelet_File_IsReadWhenItChanges(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	if got := k.assigned(); len(got.Pods) != 0 {
		t.Errorf("without a file: %v", got)
	}
	write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil), entryOf("theirs.example/nic", nil)}})
	first := k.assigned()
	want := &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{mainOfPod.Pod: {mainOfPod.Name: {gpu: {"7"}}}}}
	if !reflect.DeepEqual(first, want) {
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
	if all := k.limits(); len(all) != 1 || !strings.Contains(all[0].Text, "cannot read "+k.path) {
		t.Errorf("limits of a damaged file: %v", all)
	}
	var c config.Config
	c.Plugins.KubeletDir, c.Plugins.SocketDir = "/same", "/same"
	if newKubelet(c, k.log) != nil {
		t.Error("the file in devmgrd's own directory is devmgrd's")
	}
}

// The kubelet has a resource while a plugin is registered, and five minutes longer; and while a pod has devices by it. Pods that have ended it forgets
// when it is asked: in memory, and in its file when it writes that for another reason. A kubelet that restarts reads the file. A file that another has written
// or removed does not count more than the kubelet's word.
func TestKubelet_Manages_UntilItHasForgotten(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	k.ask = func(context.Context) (map[string]map[string]device.Choice, error) {
		return nil, errors.New("the test asks")
	}
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
	t.Cleanup(func() { <-hook })
	answer := func(err error, of ...device.ResourceName) func() {
		return func() {
			k.answered(k.read(), says(of...), err)
		}
	}
	steps := []struct {
		about string
		do    func()
		has   []device.ResourceName
		again bool // it is asked after a pause
		limit string
	}{
		{"no file", func() {}, nil, false, ""},
		{"a plugin without healthy devices", func() { write(checkpoint.File{Healthy: registered}) }, []device.ResourceName{gpu}, false, ""},
		{"a pod with devices of a resource that stays with the kubelet", func() { write(checkpoint.File{Entries: entries[2:]}) }, nil, false, ""},
		{"it says so too", answer(nil, theirs), nil, false, ""},
		{"pods", func() { write(checkpoint.File{Healthy: registered, Entries: entries}) }, []device.ResourceName{gpu}, true, ""},
		{"no answer", answer(errors.New("away")), []device.ResourceName{gpu}, true, "away"},
		{"the pods have devices", answer(nil, nic, gpu), []device.ResourceName{gpu, nic}, true, "drain the node"},
		{"they have ended, before the kubelet writes its file", answer(nil, nic), []device.ResourceName{gpu, nic}, true, "pods have devices of [vendor.example/nic] by it"},
		{"the plugin is forgotten", func() { write(checkpoint.File{Entries: entries}) }, []device.ResourceName{nic}, true, "of [vendor.example/nic] by it"},
		{"it says the same", answer(nil, nic), []device.ResourceName{nic}, true, "names pods with devices of [vendor.example/gpu] of which it says nothing"},
		{"the file is removed, and the kubelet has a pod", func() { remove(t, k.path) }, []device.ResourceName{nic}, true, "of [vendor.example/nic] by it"},
		{"it says so", answer(nil, nic), []device.ResourceName{nic}, true, "of [vendor.example/nic] by it"},
		{"the file is back", func() { write(checkpoint.File{Entries: entries}) }, []device.ResourceName{nic}, true, "of [vendor.example/nic] by it"},
		{"all pods have ended", answer(nil), nil, true, "[vendor.example/gpu vendor.example/nic] of which"},
		{"the kubelet has restarted", answer(nil, gpu), []device.ResourceName{gpu}, true, "pods with devices of [vendor.example/nic]"},
		{"another file", func() { write(checkpoint.File{}) }, []device.ResourceName{gpu}, true, "of [vendor.example/gpu] by it"},
		{"no pod has devices", answer(nil), nil, false, ""},
	}
	for _, s := range steps {
		s.do()
		if got := slices.Sorted(maps.Keys(k.manages())); !slices.Equal(got, s.has) {
			t.Errorf("%s: the kubelet has %v, want %v", s.about, got, s.has)
		}
		if again := !k.again().IsZero(); again != s.again {
			t.Errorf("%s: it is asked again: %v", s.about, again)
		}
		said := ""
		for _, l := range k.limits() {
			said += l.Text + "\n"
		}
		if (s.limit == "") != (said == "") || !strings.Contains(said, s.limit) {
			t.Errorf("%s: limits: %s", s.about, said)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

// Where the kubelet is not asked, the allocator hears of each new file.
func TestKubelet_Run_ReportsEachFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, write := kubeletFile(t)
		write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil)}})
		ctx, cancel := context.WithCancel(t.Context())
		changed, ended := 0, make(chan error, 1)
		go func() { ended <- k.run(ctx, func() { changed++ }) }()
		synctest.Wait()
		write(checkpoint.File{})
		time.Sleep(2 * askPause)
		synctest.Wait()
		if changed != 1 {
			t.Errorf("it has changed %d times, want once", changed)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The kubelet is asked once, once more for each new file, and the allocator hears of what it says.
func TestKubelet_Run_AsksForEachFile(t *testing.T) {
	t.Parallel()
	k, write := kubeletFile(t)
	asked, changed := make(chan struct{}), make(chan struct{}, 1)
	k.ask = func(ctx context.Context) (map[string]map[string]device.Choice, error) {
		select {
		case asked <- struct{}{}:
		case <-ctx.Done():
		}
		return says(gpu), nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- k.run(ctx, func() { changed <- struct{}{} }) }()
	<-asked
	<-changed
	write(checkpoint.File{Entries: []checkpoint.Entry{entryOf(gpu, nil)}})
	k.assigned() // before a plan
	<-asked
	if err := os.WriteFile(k.path, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	k.assigned() // it hides what it has named
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
