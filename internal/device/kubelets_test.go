package device_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet says nothing of init containers, and names devices in any order.
func TestKubelets_Of(t *testing.T) {
	t.Parallel()
	const gpu device.ResourceName = "vendor.example/gpu"
	p := device.Pod{UID: "uid", Namespace: "ns", Name: "name"}
	k := device.Kubelets{
		Pods: map[device.PodUID]map[string]device.Choice{p.UID: {
			"init": {gpu: {"1"}}, "greedy": {gpu: {"1", "3"}}, "main": {gpu: {"1", "2"}}, "side": {gpu: {"4"}}, "none": {gpu: nil},
		}},
		Word: map[string]map[string]device.Choice{"ns/name": {"main": {gpu: {"2", "1"}}, "side": {gpu: {"5"}}}},
	}
	got := k.Of(p)
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"init", "main"}) || !slices.Equal(got["main"][gpu], []device.ID{"1", "2"}) {
		t.Errorf("the pod has %v", got)
	}
	p.UID = "another"
	if got := k.Of(p); len(got) != 0 {
		t.Errorf("another pod of that name has %v", got)
	}
}
