package checkpoint

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Of gives our books as a kubelet would have written them: what pods hold, and what plugins offer.
func Of(pods []device.PodRecord, offered []device.Inventory) (File, error) {
	f := File{Healthy: make(map[device.ResourceName][]device.ID, len(offered))}
	listed := make(map[device.ResourceName][]device.Device, len(offered))
	for _, o := range offered {
		listed[o.Resource] = o.Devices
		ids := []device.ID{}
		for _, d := range o.Devices {
			if d.Healthy {
				ids = append(ids, d.ID)
			}
		}
		f.Healthy[o.Resource] = ids
	}
	for _, p := range pods {
		for _, as := range p.Assignments {
			for _, s := range as.Shares {
				a, err := answer(s.Grant)
				if err != nil {
					return File{}, fmt.Errorf("pod %s, container %s, %s: %w", p.Demand.Pod, as.Container.Name, s.Resource, err)
				}
				e := Entry{Container: as.Container, Resource: s.Resource, Answer: a}
				for _, id := range s.IDs {
					e.Devices = append(e.Devices, device.Device{ID: id, NUMA: near(listed[s.Resource], id)})
				}
				f.Entries = append(f.Entries, e)
				if f.Healthy[s.Resource] == nil {
					f.Healthy[s.Resource] = []device.ID{} // its plugin is not remembered, but the kubelet has to wait for it
				}
			}
		}
	}
	slices.SortStableFunc(f.Entries, compare)
	return f, nil
}

// near gives the NUMA nodes of a device in a list that is ascending by ID.
func near(devices []device.Device, id device.ID) []int {
	i, listed := slices.BinarySearchFunc(devices, id, func(d device.Device, id device.ID) int { return cmp.Compare(d.ID, id) })
	if !listed {
		return nil
	}
	return devices[i].NUMA
}
