package checkpoint_test

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	gpu device.ResourceName = "a.example/gpu"
	nic device.ResourceName = "b.example/nic"
)

// full is a grant with everything in it.
var full = device.Grant{
	Env: map[string]string{"A": "1", "B": "<&>"}, Annotations: map[string]string{"x.example/y": "z"}, CDI: []string{"a.example/gpu=0"},
	Mounts: []device.Mount{{ContainerPath: "/a", HostPath: "/b", ReadOnly: true}}, Nodes: []device.Node{{HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "mrw"}},
}

func share(r device.ResourceName, ids ...device.ID) device.Share {
	return device.Share{Resource: r, IDs: ids, Grant: full}
}

// near says where a share's devices were when they were assigned.
func near(s device.Share, nodes ...[]int) device.Share {
	s.Near = nodes
	return s
}

// held is a container's assignment.
func held(uid, name string, shares ...device.Share) device.Assignment {
	return device.Assignment{Container: device.Container{Pod: device.PodUID(uid), Name: name}, Shares: shares}
}

// wanting is a pod with containers that ask for just what they are said to hold.
func wanting(uid string, kind device.Kind, all ...device.Assignment) device.PodDemand {
	d := device.PodDemand{Pod: device.Pod{UID: device.PodUID(uid), Namespace: "ns", Name: uid}}
	for _, as := range all {
		wants := map[device.ResourceName]int{}
		for _, s := range as.Shares {
			wants[s.Resource] = len(s.IDs)
		}
		d.Demands = append(d.Demands, device.Demand{Container: as.Container, Kind: kind, Wants: wants, Env: []string{"OWN"}})
	}
	return d
}

func record(uid string, all ...device.Assignment) device.PodRecord {
	return device.PodRecord{Demand: wanting(uid, device.App, all...), Assignments: all}
}

// Our state file, written as a kubelet would have, says who has what, where that was when it was assigned and what the plugin said.
func TestOf(t *testing.T) {
	t.Parallel()
	pods := []device.PodRecord{
		record("b", held("b", "main", near(share(gpu, "0", "1"), []int{0, 1}, []int{1}), share(nic, "n"))),
		record("a", held("a", "second", share(gpu, "2")), held("a", "first", share(gpu, "gone"))),
		{Demand: wanting("waits", device.App, held("waits", "main", share(gpu, "9")))},
	}
	f, err := checkpoint.FromState(pods, []device.Inventory{{Resource: gpu, Devices: []device.Device{
		{ID: "0", Healthy: true, NUMA: []int{1}}, {ID: "1"}, {ID: "2", Healthy: true, NUMA: []int{0}}, // they have moved
	}}})
	if err != nil {
		t.Fatal(err)
	}
	f = decode(t, encode(t, f))
	if want := map[device.ResourceName][]device.ID{gpu: {"0", "2"}, nic: {}}; !reflect.DeepEqual(f.Healthy, want) {
		t.Errorf("healthy: %v, want %v", f.Healthy, want)
	}
	var got []string
	for _, e := range f.Entries {
		line := string(e.Container.Pod) + " " + e.Container.Name + " " + string(e.Resource)
		for _, d := range e.Devices {
			line += " " + string(d.ID) + strings.Repeat("*", len(d.NUMA))
		}
		got = append(got, line)
		if g, err := e.Grant(); err != nil || !reflect.DeepEqual(g, full) {
			t.Errorf("%s grants %+v (%v)", line, g, err)
		}
	}
	if want := []string{"a first a.example/gpu gone", "a second a.example/gpu 2", "b main a.example/gpu 0** 1*", "b main b.example/nic n"}; !slices.Equal(got, want) {
		t.Errorf("entries: %q, want %q", got, want)
	}
	again, err := checkpoint.FromState([]device.PodRecord{pods[2], pods[1], pods[0]}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := checkpoint.FromState(pods, nil); err != nil || !bytes.Equal(encode(t, other), encode(t, again)) {
		t.Errorf("the order of the pods shows (%v)", err)
	}
	if text := string(encode(t, f)); !strings.Contains(text, `{"0":["0"],"1":["0","1"]}`) || !strings.Contains(text, `{"-1":["gone"]}`) {
		t.Errorf("NUMA nodes are not as the kubelet has them: %s", text)
	}
}
