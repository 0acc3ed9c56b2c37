package admin

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestChoice(t *testing.T) {
	t.Parallel()
	ids := []device.ID{"a", "b", "c"}
	for want, why := range map[string]device.Why{
		"3 by lowest ID": {},
		"1 kept from init containers, 1 preferred by the plugin, 1 by lowest ID, near NUMA nodes 0, 2 first": {Kept: 1, Preferred: 1, Near: []int{0, 2}},
		"3 preferred by the plugin, near NUMA node 1 first, 2 left out: recently refused by the plugin":      {Preferred: 3, Near: []int{1}, Avoided: 2},
		"1 preferred by the plugin, 2 in the order spread":                                                   {Preferred: 1, Order: "spread"},
		"3 in use by the container when the state file was lost":                                             {Stamped: 3},
	} {
		if got := choice(device.Assignment{}, device.Share{IDs: ids, Why: why}); got != want {
			t.Errorf("%+v: %q, want %q", why, got, want)
		}
	}
	if got := choice(device.Assignment{Imported: time.Now()}, device.Share{IDs: ids}); got != "taken over from the kubelet" {
		t.Error(got)
	}
}
