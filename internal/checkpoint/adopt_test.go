package checkpoint_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// kubelets is the file of a kubelet whose pods hold this.
func kubelets(t testing.TB, healthy map[device.ResourceName][]device.ID, all ...device.Assignment) checkpoint.File {
	t.Helper()
	records := make([]device.PodRecord, len(all))
	for i, as := range all {
		records[i] = device.PodRecord{Assignments: []device.Assignment{as}}
	}
	f, err := checkpoint.FromState(records, nil)
	if err != nil {
		t.Fatal(err)
	}
	if healthy != nil {
		f.Healthy = healthy
	}
	return decode(t, encode(t, f))
}

// imported is an assignment as it is taken over.
func imported(as device.Assignment) device.Assignment {
	as.Imported = now
	return as
}

// What is in the file becomes records: of the pods that the API server has with what it says of them, of the others with
// what the file says, so that no pod gets their devices before they are free.
func TestAdopt(t *testing.T) {
	t.Parallel()
	first, main := held("chain", "first", share(gpu, "0")), held("chain", "main", share(gpu, "0"), share(nic, "n"))
	chain := wanting("chain", device.Init, first)
	chain.Demands = append(chain.Demands, wanting("chain", device.App, main).Demands...)
	plain := device.PodDemand{Pod: device.Pod{UID: "plain", Namespace: "ns", Name: "plain"}}
	waits := wanting("waits", device.App, held("waits", "main", share(gpu, "?")))
	ended := device.Pod{UID: "ended", Namespace: "ns", Name: "job"}

	f := kubelets(t, map[device.ResourceName][]device.ID{gpu: {"0", "1", "2"}, nic: {"n"}, "c.example/idle": {"x"}},
		main, first, held("ended", "a", share(gpu, "1")), held("gone", "b", near(share(gpu, "bad", "good"), nil, []int{0, 1}), share(nic, "m")))
	p := checkpoint.Adopt(f, checkpoint.AdoptInput{Active: []device.PodDemand{plain, chain, waits}, Ended: []device.Pod{ended}, Now: now})

	if len(p.Conflicts) > 0 {
		t.Fatalf("conflicts: %q", p.Conflicts)
	}
	over := func(pod device.Pod, as device.Assignment) device.PodRecord {
		r := record(string(pod.UID), imported(as))
		r.Demand.Pod, r.Demand.Demands[0].Env = pod, nil
		return r
	}
	want := []device.PodRecord{
		{Demand: chain, Assignments: []device.Assignment{imported(first), imported(main)}},
		over(ended, held("ended", "a", share(gpu, "1"))),
		over(device.Pod{UID: "gone", Namespace: "?", Name: "gone"}, held("gone", "b", near(share(gpu, "bad", "good"), nil, []int{0, 1}), share(nic, "m"))),
	}
	if !reflect.DeepEqual(p.Pods, want) {
		t.Errorf("pods:\n%+v, want\n%+v", p.Pods, want)
	}
	if want := []device.PluginRecord{
		{Resource: gpu, Reported: true, Devices: []device.Device{{ID: "0", Healthy: true}, {ID: "1", Healthy: true}, {ID: "2", Healthy: true}, {ID: "bad"}, {ID: "good", NUMA: []int{0, 1}}}},
		{Resource: nic, Reported: true, Devices: []device.Device{{ID: "m"}, {ID: "n", Healthy: true}}},
		{Resource: "c.example/idle", Reported: true, Devices: []device.Device{{ID: "x", Healthy: true}}},
	}; !reflect.DeepEqual(p.Plugins, want) {
		t.Errorf("plugins:\n%+v, want\n%+v", p.Plugins, want)
	}
	var fates []string
	for _, taking := range p.Items {
		fates = append(fates, fmt.Sprint(taking.Pod, " ", taking.Container, " ", taking.Resource, taking.IDs, taking.Outcome))
	}
	if want := []string{
		"ns/chain first a.example/gpu[0] 0", "ns/chain main a.example/gpu[0] 0", "ns/chain main b.example/nic[n] 0",
		"ns/job a a.example/gpu[1] 2", "?/gone b a.example/gpu[bad good] 2", "?/gone b b.example/nic[m] 2",
	}; !slices.Equal(fates, want) {
		t.Errorf("told: %q, want %q", fates, want)
	}
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0], "pod ns/waits, container main requests 1 of a.example/gpu, and the file has no devices for the container") {
		t.Errorf("notes: %q", p.Notes)
	}
}

// Doing it again changes nothing, whatever has become of the pods meanwhile.
func TestAdoptAgain(t *testing.T) {
	t.Parallel()
	a, b := held("a", "main", share(gpu, "0")), held("b", "main", share(gpu, "1"))
	f := kubelets(t, nil, a, b)
	here := checkpoint.AdoptInput{Active: []device.PodDemand{wanting("a", device.App, a)}, Now: now}
	first := checkpoint.Adopt(f, here)
	here.Pods, here.Plugins, here.Now = first.Pods, first.Plugins, now.Add(time.Hour)
	for _, scene := range []checkpoint.AdoptInput{here, {Pods: here.Pods, Plugins: here.Plugins, Now: here.Now}} {
		p := checkpoint.Adopt(f, scene)
		if len(p.Pods)+len(p.Conflicts)+len(p.Notes) > 0 || !reflect.DeepEqual(p.Plugins, first.Plugins) || len(p.Items) != 2 {
			t.Errorf("again: %+v", p)
		}
		for _, taking := range p.Items {
			if taking.Outcome != checkpoint.AlreadyRecorded {
				t.Errorf("%+v is not known", taking)
			}
		}
	}
}

// What the state file has of a pod, or of a plugin, stays.
func TestAdoptAdds(t *testing.T) {
	t.Parallel()
	a, b := held("a", "a", share(gpu, "0")), held("a", "b", share(gpu, "1"))
	p := checkpoint.Adopt(kubelets(t, map[device.ResourceName][]device.ID{gpu: {"0", "2"}}, b), checkpoint.AdoptInput{
		Active: []device.PodDemand{wanting("a", device.App, a, b)},
		Pods:   []device.PodRecord{{Demand: wanting("a", device.App, a, b), Assignments: []device.Assignment{a}}},
		Plugins: []device.PluginRecord{
			{Resource: gpu, Endpoint: "gpu.sock", Reported: true, Devices: []device.Device{{ID: "0", NUMA: []int{1}}}},
			{Resource: nic, Endpoint: "nic.sock"},
		},
		Now: now,
	})
	if want := []device.PodRecord{{Demand: wanting("a", device.App, a, b), Assignments: []device.Assignment{a, imported(b)}}}; !reflect.DeepEqual(p.Pods, want) {
		t.Errorf("pods:\n%+v, want\n%+v", p.Pods, want)
	}
	if want := []device.PluginRecord{{Resource: gpu, Endpoint: "gpu.sock", Reported: true, Devices: []device.Device{
		{ID: "0", NUMA: []int{1}}, {ID: "1"}, {ID: "2", Healthy: true},
	}}}; !reflect.DeepEqual(p.Plugins, want) {
		t.Errorf("plugins:\n%+v, want\n%+v", p.Plugins, want)
	}
	// A pod that devmgrd has only seen waiting is one like any other.
	p = checkpoint.Adopt(kubelets(t, nil, a, b), checkpoint.AdoptInput{
		Active: []device.PodDemand{wanting("a", device.App, a, b)}, Pods: []device.PodRecord{{Demand: wanting("a", device.App, a, b)}}, Now: now,
	})
	if len(p.Pods) != 1 || len(p.Pods[0].Assignments) != 2 {
		t.Errorf("pods: %+v", p.Pods)
	}
}

// All conflicts are reported together, one line each.
func TestAdoptConflicts(t *testing.T) {
	t.Parallel()
	one := held("a", "main", share(gpu, "0"))
	entry := func(change func(*checkpoint.Entry)) checkpoint.File {
		f := kubelets(t, nil, one)
		change(&f.Entries[0])
		return f
	}
	good := checkpoint.AdoptInput{Active: []device.PodDemand{wanting("a", device.App, one)}}
	forged := wanting("a", device.App, one)
	forged.Pod.Namespace = "evil"
	for name, test := range map[string]struct {
		file  checkpoint.File
		scene checkpoint.AdoptInput
		want  []string
	}{
		"none": {kubelets(t, nil, one), good, nil},
		"a device of two pods": {
			kubelets(t, nil, one, held("b", "main", share(gpu, "0"))), good,
			[]string{"a.example/gpu/0: assigned to pod ns/a by the kubelet's file, and to pod ?/b by the kubelet's file"},
		},
		"the state file has it as another pod's": {
			kubelets(t, nil, one), checkpoint.AdoptInput{Active: good.Active, Pods: []device.PodRecord{record("b", held("b", "main", share(gpu, "0")))}},
			[]string{"a.example/gpu/0: assigned to pod ns/b by devmgrd's state file, and to pod ns/a by the kubelet's file"},
		},
		"the state file has other devices for it": {
			kubelets(t, nil, one), checkpoint.AdoptInput{Active: good.Active, Pods: []device.PodRecord{record("a", held("a", "main", share(gpu, "1")))}},
			[]string{"pod ns/a, container main: the kubelet's file assigns a.example/gpu [0], and devmgrd's state file a.example/gpu [1]"},
		},
		"more than it requests": {
			kubelets(t, nil, held("a", "main", share(gpu, "0", "1"))), good,
			[]string{"pod ns/a, container main: it requests 1 of a.example/gpu, and the file has 2"},
		},
		"less than it requests, and of one nothing": {
			kubelets(t, nil, one), checkpoint.AdoptInput{Active: []device.PodDemand{wanting("a", device.App, held("a", "main", share(gpu, "0", "1"), share(nic, "n")))}},
			[]string{
				"pod ns/a, container main: it requests 2 of a.example/gpu, and the file has 1",
				"pod ns/a, container main: it requests 1 of b.example/nic, and the file has only a.example/gpu [0]; if no device plugin serves b.example/nic, add it to plugins.ignoredResources",
			},
		},
		"a forged mirror pod with its UID": {
			kubelets(t, nil, one), checkpoint.AdoptInput{Active: append(slices.Clone(good.Active), forged)},
			[]string{"pods ns/a and evil/a both have the annotation of the mirror of one static pod, a: "},
		},
		"a forged mirror pod without entries": {
			kubelets(t, nil, held("b", "main", share(gpu, "0"))), checkpoint.AdoptInput{Active: append(slices.Clone(good.Active), forged)}, nil,
		},
		"a container that asks for nothing": {
			kubelets(t, nil, held("a", "other", share(gpu, "0"))), good, []string{"pod ns/a, container other: it requests 0 of a.example/gpu, and the file has 1"},
		},
		"an answer that is none": {
			entry(func(e *checkpoint.Entry) { e.Answer = []byte("garbage") }), good, []string{"pod ns/a, container main, a.example/gpu: the plugin's answer cannot be read"},
		},
		"an answer that cannot be used": {
			kubelets(t, nil, held("a", "main", device.Share{Resource: gpu, IDs: []device.ID{"0"}, Grant: device.Grant{CDI: []string{"x"}}})), good,
			[]string{`pod ns/a, container main, a.example/gpu: the plugin's answer cannot be used: cdi_devices[0]: name "x"`},
		},
		"twice": {
			func() checkpoint.File {
				f := kubelets(t, nil, one)
				f.Entries = append(f.Entries, f.Entries[0])
				return f
			}(), good, []string{"pod ns/a, container main, a.example/gpu: the file has two such entries"},
		},
		"no device":           {entry(func(e *checkpoint.Entry) { e.Devices = nil }), good, []string{"the file names no device"}},
		"a device without ID": {entry(func(e *checkpoint.Entry) { e.Devices[0].ID = "" }), good, []string{"a device has no ID"}},
		"no pod's":            {entry(func(e *checkpoint.Entry) { e.Container.Name = "" }), good, []string{"the entry lacks a pod or a container"}},
		"no resource":         {kubelets(t, map[device.ResourceName][]device.ID{"cpu": {"0"}}, one), good, []string{`resource name "cpu"`}},
	} {
		p := checkpoint.Adopt(test.file, test.scene)
		if len(p.Conflicts) != len(test.want) {
			t.Errorf("%s: %q, want %q", name, p.Conflicts, test.want)
			continue
		}
		for i, want := range test.want {
			if !strings.Contains(p.Conflicts[i], want) || strings.Contains(p.Conflicts[i], "\n") {
				t.Errorf("%s: %q, want %q", name, p.Conflicts[i], want)
			}
		}
	}
}

// In and back is what was there before.
func TestInAndBack(t *testing.T) {
	t.Parallel()
	f := decode(t, real(t))
	p := checkpoint.Adopt(f, checkpoint.AdoptInput{Now: now})
	var offered []device.Inventory
	for _, r := range p.Plugins {
		offered = append(offered, device.Inventory{Resource: r.Resource, Devices: r.Devices})
	}
	back, err := checkpoint.FromState(p.Pods, offered)
	if err != nil || len(p.Conflicts) > 0 {
		t.Fatal(err, p.Conflicts)
	}
	if string(encode(t, back)) != string(encode(t, f)) {
		t.Errorf("%+v became %+v", f, back)
	}
}
