package containers

import (
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func container(pod, name, id string, idle bool) device.Running {
	return device.Running{ID: id, Container: device.Container{Pod: device.PodUID(pod), Name: name}, Idle: idle}
}

// A container that is reported again keeps what is known of its devices, and the last one to go takes its pod along.
func TestContainers_AddAndRemove(t *testing.T) {
	all := Containers{}
	all.Add(container("a", "main", "1", false), true).UnknownDevices = []device.ResourceName{"v.example/gpu"}
	if c := all.Add(container("a", "main", "1", false), true); len(c.UnknownDevices) != 1 {
		t.Errorf("reported again, it has %v", c.UnknownDevices)
	}
	all.Add(container("a", "side", "2", false), true)
	if !all["a"].Has("side") || all["a"].Has("other") {
		t.Errorf("the pod has %v", all["a"])
	}
	for _, step := range []struct {
		id          string
		known, last bool
	}{{"9", false, false}, {"1", true, false}, {"1", false, false}, {"2", true, true}} {
		if c, last := all.Remove("a", step.id); (c != nil) != step.known || last != step.last {
			t.Errorf("removing %s: %v, last %v", step.id, c, last)
		}
	}
	if len(all) > 0 {
		t.Errorf("%v is left", all)
	}
}

// Containers are barred together: one that may run, or is not proven idle, keeps all of them.
func TestPod_Bar_AllOrNone(t *testing.T) {
	for name, c := range map[string]struct {
		idle, proven [2]bool
		starts       bool
		barred       bool
	}{
		"all idle and proven": {[2]bool{true, true}, [2]bool{true, true}, false, true},
		"one may run":         {[2]bool{true, false}, [2]bool{true, true}, false, false},
		"one is not proven":   {[2]bool{true, true}, [2]bool{true, false}, false, false},
		"one starts":          {[2]bool{true, true}, [2]bool{true, true}, true, false},
	} {
		all, proven := Containers{}, map[*Container]bool{}
		for i, id := range []string{"1", "2"} {
			if one := all.Add(container("a", "c"+id, id, c.idle[i]), true); c.proven[i] {
				proven[one] = true
			}
		}
		if got := all["a"].Bar(proven, func(Pod) bool { return !c.starts }); got != c.barred {
			t.Errorf("%s: barred is %v", name, got)
		}
		for id, one := range all["a"] {
			if one.Barred != c.barred {
				t.Errorf("%s: container %s: barred is %v", name, id, one.Barred)
			}
		}
		if all["a"].MayRun() == (c.idle == [2]bool{true, true}) {
			t.Errorf("%s: may run is %v", name, all["a"].MayRun())
		}
	}
}

func TestDevices_Add_EachOnce(t *testing.T) {
	all, c := Devices{}, device.Container{Pod: "a", Name: "main"}
	all.Add(c, "v.example/gpu", []device.ID{"1", "2", "1"})
	all.Add(c, "v.example/gpu", []device.ID{"2", "3"})
	all.Add(c, "v.example/nic", []device.ID{"1"})
	want := Devices{"a": {"main": {"v.example/gpu": {"1", "2", "3"}, "v.example/nic": {"1"}}}}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}
