package device_test

import (
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet says nothing of init containers, and names devices in any order.
func TestKubelets_Of(t *testing.T) {
	t.Parallel()
	const gpu device.ResourceName = "vendor.example/gpu"
	p, other := device.Pod{UID: "uid", Namespace: "ns", Name: "name"}, device.Pod{UID: "uid", Namespace: "ns", Name: "unknown"}
	k := device.Kubelets{
		Pods: map[device.PodUID]map[string]device.Choice{p.UID: {
			"init": {gpu: {"1", "3"}}, "thief": {gpu: {"1", "9"}}, "main": {gpu: {"1", "2"}}, "side": {gpu: {"4"}}, "none": {gpu: nil},
		}},
		Word:  map[string]map[string]device.Choice{"ns/name": {"main": {gpu: {"2", "1"}}, "side": {gpu: {"5"}}}, "ns/another": {"main": {gpu: {"9"}}}},
		Asked: true,
	}
	for _, test := range []struct {
		pod       device.Pod
		container string
		init      bool
		has       int
		denied    bool
	}{
		{p, "main", false, 2, false},
		{p, "side", false, 0, true},
		{p, "init", true, 2, false},
		{p, "thief", true, 0, false},
		{p, "init", false, 0, true},
		{p, "none", false, 0, false},
		{other, "main", false, 0, false},
		{device.Pod{UID: "next", Namespace: "ns", Name: "name"}, "main", false, 0, false},
	} {
		ids := k.Pods[test.pod.UID][test.container][gpu]
		if got := k.Of(test.pod, test.container, test.init, gpu); len(got) != test.has || len(got) > 0 && !slices.Equal(got, ids) {
			t.Errorf("%+v has %v", test, got)
		}
		if len(ids) > 0 && k.Denies(test.pod, test.container, test.init, gpu, ids) != test.denied {
			t.Errorf("%+v: denied %v", test, !test.denied)
		}
	}
	k.Asked = false
	if got := k.Of(other, "side", false, gpu); len(got) != 1 || k.Denies(other, "side", false, gpu, got) {
		t.Errorf("a checkpoint that is believed: %v", got)
	}
	if used := k.Used(); len(used) != 1 || !used[gpu] {
		t.Errorf("pods have devices of %v", used)
	}
}
