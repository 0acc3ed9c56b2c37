package daemon

import (
	"regexp"
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
)

// giveUpAfter returns how long pods wait; nil: without end.
func giveUpAfter(w config.Wait) func(device.Reason, device.ResourceName) time.Duration {
	if len(w.GiveUpAfter) == 0 {
		return nil
	}
	return func(why device.Reason, r device.ResourceName) time.Duration { return w.GiveUp(string(why), string(r)) }
}

// ordering returns the order of choice of each resource. The configuration has been checked.
func ordering(a config.Allocation) func(device.ResourceName) allocator.Ordering {
	compiled := map[string]*regexp.Regexp{"": nil, config.NUMAGroups: nil}
	for _, expression := range a.Groups {
		if _, known := compiled[expression]; !known {
			compiled[expression] = regexp.MustCompile(expression)
		}
	}
	return func(r device.ResourceName) allocator.Ordering {
		return allocator.Ordering{
			Order: allocator.Order(config.ByResource(a.Order, string(r))),
			Group: compiled[config.ByResource(a.Groups, string(r))],
		}
	}
}
