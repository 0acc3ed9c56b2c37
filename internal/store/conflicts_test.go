package store_test

import (
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Two records with one device are returned as they are, and named. Containers of one pod share a
// device without harm, and so do pods that have it by one claim.
func TestConflicts_OfRecords_AreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	has := func(uid string, shares ...device.Share) device.PodRecord {
		r := pod(uid)
		c := r.Demand.Demands[0].Container
		init := device.Container{Pod: c.Pod, Name: "init"}
		wants := map[device.ResourceName]int{}
		for _, s := range shares {
			wants[s.Resource] = len(s.IDs)
		}
		r.Demand.Demands = []device.Demand{{Container: init, Kind: device.Init, Wants: wants}, {Container: c, Kind: device.App, Wants: wants}}
		r.Assignments = []device.Assignment{{Container: init, Shares: shares}, {Container: c, Shares: shares}}
		return r
	}
	by := func(claim device.ClaimUID, id device.ID, r device.PodRecord) device.PodRecord {
		for i := range r.Demand.Demands {
			r.Demand.Demands[i].Claimed = map[device.ResourceName]map[device.ID]device.ClaimUID{"a.com/x": {id: claim}}
		}
		return r
	}
	want := []device.PodRecord{
		has("a", device.Share{Resource: "b.com/x", IDs: []device.ID{"0", "1"}}),
		has("b", device.Share{Resource: "a.com/x", IDs: []device.ID{"0"}}, device.Share{Resource: "b.com/x", IDs: []device.ID{"1"}}),
		has("c", device.Share{Resource: "a.com/x", IDs: []device.ID{"0"}}),
		has("d", device.Share{Resource: "a.com/x", IDs: []device.ID{"2"}}),
		by("one", "3", has("e", device.Share{Resource: "a.com/x", IDs: []device.ID{"3"}})),
		by("one", "3", has("f", device.Share{Resource: "a.com/x", IDs: []device.ID{"3"}})),
		by("one", "4", has("g", device.Share{Resource: "a.com/x", IDs: []device.ID{"4"}})),
		by("other", "4", has("h", device.Share{Resource: "a.com/x", IDs: []device.ID{"4"}})),
		by("one", "5", has("i", device.Share{Resource: "a.com/x", IDs: []device.ID{"5"}})),
		has("j", device.Share{Resource: "a.com/x", IDs: []device.ID{"5"}}),
	}
	if err := s.SavePods(want, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, b, _, _ := recover(t, dir)
	if !reflect.DeepEqual(b.Pods, want) {
		t.Errorf("the records are %+v, want %+v", b.Pods, want)
	}
	a, bb, c := want[0].Demand.Pod, want[1].Demand.Pod, want[2].Demand.Pod
	g, h, i, j := want[6].Demand.Pod, want[7].Demand.Pod, want[8].Demand.Pod, want[9].Demand.Pod
	if got, want := device.Conflicts(b.Pods), []device.Conflict{
		{Resource: "a.com/x", ID: "0", Pods: []device.Pod{bb, c}},
		{Resource: "a.com/x", ID: "4", Pods: []device.Pod{g, h}},
		{Resource: "a.com/x", ID: "5", Pods: []device.Pod{i, j}},
		{Resource: "b.com/x", ID: "1", Pods: []device.Pod{a, bb}},
	}; !reflect.DeepEqual(got, want) {
		t.Errorf("conflicts are %+v, want %+v", got, want)
	}
}
