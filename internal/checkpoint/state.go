package checkpoint

import (
	"fmt"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// FromState returns devmgrd's state file as a kubelet's file: the pods' devices and the plugins' offers.
func FromState(pods []device.PodRecord, offered []device.Inventory) (File, error) {
	f := File{Healthy: make(map[device.ResourceName][]device.ID, len(offered))}
	for _, o := range offered {
		f.Healthy[o.Resource] = healthy(o)
	}
	for _, p := range pods {
		if err := f.add(p.Demand.Pod, p.Assignments, func(device.ResourceName) bool { return true }); err != nil {
			return File{}, err
		}
	}
	for _, e := range f.Entries {
		if f.Healthy[e.Resource] == nil {
			f.Healthy[e.Resource] = []device.ID{} // no record of the plugin, but the kubelet must wait for it
		}
	}
	slices.SortStableFunc(f.Entries, compare)
	return f, nil
}

// healthy returns the IDs of an inventory's healthy devices, ascending.
func healthy(o device.Inventory) []device.ID {
	ids := []device.ID{}
	for _, d := range o.Devices {
		if d.Healthy {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// add adds entries for a pod's devices of the shown resources.
func (f *File) add(pod device.Pod, all []device.Assignment, shown func(device.ResourceName) bool) error {
	for c, s := range device.Shares(all) {
		if !shown(s.Resource) {
			continue
		}
		a, err := answer(s.Grant)
		if err != nil {
			return fmt.Errorf("pod %s, container %s, %s: %w", pod, c.Name, s.Resource, err)
		}
		e := Entry{Container: c, Resource: s.Resource, Devices: make([]device.Device, len(s.IDs)), Answer: a}
		for i, id := range s.IDs {
			e.Devices[i].ID = id
			if i < len(s.Near) {
				e.Devices[i].NUMA = s.Near[i]
			}
		}
		f.Entries = append(f.Entries, e)
	}
	return nil
}
