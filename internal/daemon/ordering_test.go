package daemon

import (
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
)

// The most exact pattern counts, for the order and for the groups apart.
func TestOrdering_MostExactPatternCounts(t *testing.T) {
	of := ordering(config.Allocation{
		Order:  map[string]string{"*": "oldest", "nvidia.com/*": "pack", "nvidia.com/gpu": "spread"},
		Groups: map[string]string{"nvidia.com/gpu": "^(.*)::", "nvidia.com/*": "^[^-]*", "amd.com/gpu": "numa"},
	})
	for resource, want := range map[device.ResourceName]string{
		"nvidia.com/gpu": "spread ^(.*)::", "nvidia.com/mig": "pack ^[^-]*", "amd.com/gpu": "oldest ", "intel.com/sriov": "oldest ",
	} {
		o, group := of(resource), ""
		if o.Group != nil {
			group = o.Group.String()
		}
		if got := string(o.Order) + " " + group; got != want {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
	if o := ordering(config.Allocation{})("vendor.example/gpu"); o.Order != "" || o.Group != nil {
		t.Errorf("without settings: %+v", o)
	}
}
