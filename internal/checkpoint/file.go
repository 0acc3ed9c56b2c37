package checkpoint

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// Name is the kubelet's name of the file, in its device plugin directory.
const Name = "kubelet_internal_checkpoint"

// A File is the content of a kubelet's file, unchecked.
type File struct {
	Entries []Entry // ascending by pod, container and resource
	// Healthy are the resources that plugins had registered, with their healthy devices, ascending.
	Healthy map[device.ResourceName][]device.ID
}

// An Entry is one container's devices of one resource.
type Entry struct {
	Container device.Container
	Resource  device.ResourceName
	Devices   []device.Device // ascending by ID, with NUMA nodes and without health
	Answer    []byte          // the plugin's, unchanged: see Grant
}

// IDs returns the IDs of the entry's devices, ascending.
func (e Entry) IDs() []device.ID {
	return lists.Map(e.Devices, func(d device.Device) device.ID { return d.ID })
}

// near returns the NUMA nodes of each of the entry's devices; nil if no device has any.
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

// ByPod returns the IDs of each container's devices.
func (f File) ByPod() map[device.PodUID]map[string]device.Choice {
	all := map[device.PodUID]map[string]device.Choice{}
	for _, e := range f.Entries {
		lists.Inner(lists.Inner(all, e.Container.Pod), e.Container.Name)[e.Resource] = e.IDs()
	}
	return all
}

// Decode parses a file. It fails with a *CorruptError if the file is not as a kubelet writes it.
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
		ids := lists.Map(list, func(id string) device.ID { return device.ID(id) })
		slices.Sort(ids)
		f.Healthy[device.ResourceName(r)] = slices.Compact(ids)
	}
	return f, nil
}

func compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(a.Container.Pod, b.Container.Pod), cmp.Compare(a.Container.Name, b.Container.Name), cmp.Compare(a.Resource, b.Resource))
}

// devices converts the kubelet's lists by NUMA node into one list of devices.
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

// perNUMA is the inverse of devices.
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

// Encode returns the file as a kubelet writes it. Equal files have equal bytes.
func (f File) Encode() ([]byte, error) {
	d := checkpointData{
		PodDeviceEntries:  make([]PodDevicesEntry, 0, len(f.Entries)),
		RegisteredDevices: make(map[string][]string, len(f.Healthy)),
	}
	for _, e := range f.Entries {
		answer := e.Answer
		if answer == nil {
			answer = []byte{} // JSON keeps nil as null, which a kubelet never writes
		}
		d.PodDeviceEntries = append(d.PodDeviceEntries, PodDevicesEntry{
			PodUID: string(e.Container.Pod), ContainerName: e.Container.Name, ResourceName: string(e.Resource),
			DeviceIDs: perNUMA(e.Devices), AllocResp: answer,
		})
	}
	for r, ids := range f.Healthy {
		d.RegisteredDevices[string(r)] = lists.Strings(ids)
	}
	return marshal(d)
}

// Select returns the part of the file about the selected resources.
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

// Join merges two files about different resources.
func (f File) Join(g File) File {
	all := File{Entries: slices.Concat(f.Entries, g.Entries), Healthy: map[device.ResourceName][]device.ID{}}
	slices.SortStableFunc(all.Entries, compare)
	maps.Copy(all.Healthy, f.Healthy)
	maps.Copy(all.Healthy, g.Healthy)
	return all
}

// Empty reports whether the file has no content.
func (f File) Empty() bool { return len(f.Entries)+len(f.Healthy) == 0 }

// Resources returns the resources in the file, ascending.
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

// Write writes data to path, durably and in one step: a reader finds the old file or the new one. The temporary file's name
// begins with a dot, so a kubelet's listing of the directory ignores it.
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

// limits bound a file, since plugins may write in its directory: bytes, of which a kubelet's file has some 100 for each device; JSON objects and nulls, two for
// each resource of a container; and commas. What is larger is refused before it is decoded, which costs some hundred times as much.
type limits struct{ bytes, objects, elements int }

const (
	maxBytes    = 256 << 20
	maxObjects  = 1 << 17
	maxElements = 1 << 22

	// What bounds a file that is read again and again.
	watchedBytes    = 8 << 20
	watchedObjects  = 1 << 14
	watchedElements = 1 << 18
)

// Read reads the file at path. It must be a regular file and no link.
func Read(path string) (File, error) { return limits{maxBytes, maxObjects, maxElements}.read(path) }

// ReadWatched is Read, with the limits of a node that is not extraordinary, for a file that is read whenever a plugin may have changed it.
func ReadWatched(path string) (File, error) {
	return limits{watchedBytes, watchedObjects, watchedElements}.read(path)
}

func (l limits) read(path string) (File, error) {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return File{}, err
	}
	defer d.Close()
	data, err := d.ReadFile(name, int64(l.bytes))
	if err != nil {
		return File{}, err
	}
	f := File{}
	if objects, elements := bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("null")), bytes.Count(data, []byte(",")); objects > l.objects || elements > l.elements {
		err = fmt.Errorf("it has %d objects and %d elements, and may have %d and %d", objects, elements, l.objects, l.elements)
	} else {
		f, err = Decode(data)
	}
	if err != nil {
		return File{}, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}
