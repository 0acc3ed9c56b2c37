package store

import (
	"cmp"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Contradiction is a device that the records assign to several pods.
type Contradiction struct {
	Resource device.ResourceName
	ID       device.ID
	Pods     []device.Pod // in the order of their UIDs
}

// Contradictions returns the devices that the records assign to several pods, ordered by resource and ID. The cause is a
// commit that failed and is in the file all the same. Containers of one pod may share a device.
func (b State) Contradictions() []Contradiction {
	type key struct {
		resource device.ResourceName
		id       device.ID
	}
	pods := map[key][]device.Pod{}
	for _, p := range b.Pods {
		for _, as := range p.Assignments {
			for _, s := range as.Shares {
				for _, id := range s.IDs {
					k := key{s.Resource, id}
					if has := pods[k]; len(has) == 0 || has[len(has)-1].UID != p.Demand.Pod.UID {
						pods[k] = append(has, p.Demand.Pod)
					}
				}
			}
		}
	}
	maps.DeleteFunc(pods, func(_ key, has []device.Pod) bool { return len(has) < 2 })
	var all []Contradiction
	for k, has := range pods {
		all = append(all, Contradiction{k.resource, k.id, has})
	}
	slices.SortFunc(all, func(a, b Contradiction) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	return all
}
