package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/shareddir"
)

// Name is what a kubelet calls the file, in the directory of its device plugins.
const Name = "kubelet_internal_checkpoint"

// A File is what a kubelet's file says. Nothing in it has been judged.
type File struct {
	Entries []Entry // ascending by pod, container and resource
	// Healthy are the resources that plugins had registered, and their devices that were healthy: ascending.
	Healthy map[device.ResourceName][]device.ID
}

// An Entry is the devices of one resource that one container has.
type Entry struct {
	Container device.Container
	Resource  device.ResourceName
	Devices   []device.Device // ascending by ID; of each, the NUMA nodes that it was near and nothing of its health
	Answer    []byte          // the plugin's, as it came: see Grant
}

// IDs returns the IDs of the entry's devices, ascending.
func (e Entry) IDs() []device.ID {
	ids := make([]device.ID, len(e.Devices))
	for i, d := range e.Devices {
		ids[i] = d.ID
	}
	return ids
}

// near returns the NUMA nodes of each of the entry's devices; nil if none of them has a place.
func (e Entry) near() [][]int {
	var all [][]int
	for i, d := range e.Devices {
		if len(d.NUMA) > 0 && all == nil {
			all = make([][]int, len(e.Devices))
		}
		if all != nil {
			all[i] = d.NUMA
		}
	}
	return all
}

// Decode reads a file. A *CorruptError says that it is not as a kubelet has written it.
func Decode(data []byte) (File, error) {
	d, err := unmarshal(data)
	if err != nil {
		return File{}, err
	}
	f := File{Healthy: make(map[device.ResourceName][]device.ID, len(d.RegisteredDevices))}
	for _, e := range d.PodDeviceEntries {
		f.Entries = append(f.Entries, Entry{
			Container: device.Container{Pod: device.PodUID(e.PodUID), Name: e.ContainerName},
			Resource:  device.ResourceName(e.ResourceName),
			Devices:   e.DeviceIDs.devices(),
			Answer:    e.AllocResp,
		})
	}
	slices.SortStableFunc(f.Entries, compare)
	for r, list := range d.RegisteredDevices {
		ids := make([]device.ID, len(list))
		for i, id := range list {
			ids[i] = device.ID(id)
		}
		slices.Sort(ids)
		f.Healthy[device.ResourceName(r)] = slices.Compact(ids)
	}
	return f, nil
}

func compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Container.Pod, b.Container.Pod), cmp.Compare(a.Container.Name, b.Container.Name), cmp.Compare(a.Resource, b.Resource))
}

// devices turns the kubelet's lists by NUMA node into one list of devices.
func (per DevicesPerNUMA) devices() []device.Device {
	near := map[device.ID][]int{}
	for node, ids := range per {
		for _, id := range ids {
			nodes := near[device.ID(id)]
			if node >= 0 {
				nodes = append(nodes, int(node))
			}
			near[device.ID(id)] = nodes
		}
	}
	var all []device.Device
	for _, id := range slices.Sorted(maps.Keys(near)) {
		nodes := near[id]
		slices.Sort(nodes)
		all = append(all, device.Device{ID: id, NUMA: slices.Compact(nodes)})
	}
	return all
}

// perNUMA is the way back.
func perNUMA(devices []device.Device) DevicesPerNUMA {
	per := DevicesPerNUMA{}
	for _, d := range devices {
		if len(d.NUMA) == 0 {
			per[nowhere] = append(per[nowhere], string(d.ID))
		}
		for _, n := range d.NUMA {
			per[int64(n)] = append(per[int64(n)], string(d.ID))
		}
	}
	return per
}

// Encode writes the file as a kubelet would. Equal files give equal bytes.
func (f File) Encode() ([]byte, error) {
	d := checkpointData{
		PodDeviceEntries:  make([]PodDevicesEntry, 0, len(f.Entries)),
		RegisteredDevices: make(map[string][]string, len(f.Healthy)),
	}
	for _, e := range f.Entries {
		answer := e.Answer
		if answer == nil {
			answer = []byte{} // JSON would bring back nil as nil, but a kubelet never writes it
		}
		d.PodDeviceEntries = append(d.PodDeviceEntries, PodDevicesEntry{
			PodUID: string(e.Container.Pod), ContainerName: e.Container.Name, ResourceName: string(e.Resource),
			DeviceIDs: perNUMA(e.Devices), AllocResp: answer,
		})
	}
	for r, ids := range f.Healthy {
		list := make([]string, len(ids))
		for i, id := range ids {
			list[i] = string(id)
		}
		d.RegisteredDevices[string(r)] = list
	}
	return marshal(d)
}

// Select returns the part of the file that is about some resources.
func (f File) Select(of func(device.ResourceName) bool) File {
	part := File{Healthy: map[device.ResourceName][]device.ID{}}
	for _, e := range f.Entries {
		if of(e.Resource) {
			part.Entries = append(part.Entries, e)
		}
	}
	for r, ids := range f.Healthy {
		if of(r) {
			part.Healthy[r] = ids
		}
	}
	return part
}

// Join returns one file of two that are about different resources.
func (f File) Join(g File) File {
	all := File{Entries: slices.Concat(f.Entries, g.Entries), Healthy: map[device.ResourceName][]device.ID{}}
	slices.SortStableFunc(all.Entries, compare)
	maps.Copy(all.Healthy, f.Healthy)
	maps.Copy(all.Healthy, g.Healthy)
	return all
}

// Empty reports whether the file says nothing.
func (f File) Empty() bool { return len(f.Entries)+len(f.Healthy) == 0 }

// Resources returns the resources that the file is about, ascending.
func (f File) Resources() []device.ResourceName {
	names := map[device.ResourceName]bool{}
	for r := range f.Healthy {
		names[r] = true
	}
	for _, e := range f.Entries {
		names[e.Resource] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Write puts data at path, durably and in one step: a reader finds the old file or the new one. A listing of the
// directory by a kubelet does not show the draft, whose name begins with a dot.
func Write(path string, data []byte) error {
	return write(path, func(d *shareddir.Dir, name string) error { return d.WriteFile(name, data) })
}

func write(path string, with func(d *shareddir.Dir, name string) error) error {
	d, name, err := shareddir.Split(path)
	if err == nil {
		defer d.Close()
		err = with(d, name)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// maxBytes bounds a file: a kubelet's has some 100 bytes for each device.
const maxBytes = 256 << 20

// Read reads the file at path, which is a regular one and no link: plugins may write in its directory.
func Read(path string) (File, error) {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return File{}, err
	}
	defer d.Close()
	data, err := d.ReadFile(name, maxBytes)
	if err != nil {
		return File{}, err
	}
	f, err := Decode(data)
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
