package registry

import (
	"cmp"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A lister turns the lists of one stream into inventories. Plugins mostly keep the order of their devices, so it neither sorts nor
// copies a list with the same IDs in the same order, unless a device has changed.
type lister struct {
	deviceList                 // with the latest inventory: shared with readers, never edited
	most       int             // plugins.maxDevices
	order      []int32         // devices[order[i]] is the i-th of the latest message; nil: not known
	nodes      map[int64][]int // NUMA lists of one node, one of each
}

const (
	// maxID bounds the length of an ID, far above that of any plugin. IDs are keys of the state file.
	maxID = 1 << 10
	// maxNode is the kernel's highest number of a NUMA node (MAX_NUMNODES is 1024 at most).
	maxNode = 1<<10 - 1
	// maxNodes bounds the NUMA nodes of one device. Devices of real machines are near one to eight; a device near all nodes of the
	// largest machines may as well name none.
	maxNodes = 64
)

// faults counts the corrected faults of a list.
type faults struct {
	doubles int    // entries with an ID that comes again later
	double  string // one such ID
	empty   int    // entries without ID
	long    int    // entries with an ID of more than maxID bytes
	nowhere int    // entries near a NUMA node above maxNode, or near more than maxNodes
}

// take makes devices the inventory of a message. Without a change they stay the same slice.
func (l *lister) take(message []*pluginapi.Device, now time.Time) faults {
	if l.order != nil && l.takeInPlace(message) {
		return faults{}
	}
	return l.takeAnew(message, now)
}

// takeInPlace takes a message with the IDs of the previous one in the same order, and returns false for any other.
func (l *lister) takeInPlace(message []*pluginapi.Device) bool {
	if len(message) != len(l.order) {
		return false
	}
	devices, copied := l.devices, false
	for i, m := range message {
		d := &devices[l.order[i]]
		if string(d.ID) != m.ID || impossible(m.Topology) {
			return false
		}
		healthy := m.Health == pluginapi.Healthy
		if d.Healthy == healthy && l.near(d.NUMA, m.Topology) {
			continue
		}
		if !copied {
			devices, copied = slices.Clone(devices), true
			d = &devices[l.order[i]]
		}
		d.Healthy, d.NUMA = healthy, l.numa(m.Topology)
	}
	l.devices = devices
	return true
}

// takeAnew takes any message: it sorts, removes duplicates, and shares unchanged parts with the old inventory.
func (l *lister) takeAnew(message []*pluginapi.Device, now time.Time) (found faults) {
	sorted := make([]int32, 0, len(message)) // places in the message, by ID; of doubles the later one stands later
	for i, m := range message {
		switch {
		case m.ID == "":
			found.empty++
			continue
		case len(m.ID) > maxID:
			found.long++
			continue
		}
		if impossible(m.Topology) {
			found.nowhere++
		}
		sorted = append(sorted, int32(i))
	}
	slices.SortFunc(sorted, func(a, b int32) int {
		return cmp.Or(device.CompareIDs(device.ID(message[a].ID), device.ID(message[b].ID)), cmp.Compare(a, b))
	})

	devices := make([]device.Device, 0, len(sorted))
	order := make([]int32, len(message))
	old, come, same := walk{rest: l.devices}, additions{before: &l.deviceList, now: now}, true
	for i, at := range sorted {
		m := message[at]
		if i+1 < len(sorted) && message[sorted[i+1]].ID == m.ID {
			found.doubles, found.double = found.doubles+1, m.ID
			continue
		}
		d := device.Device{ID: device.ID(m.ID), Healthy: m.Health == pluginapi.Healthy}
		if was, known := old.find(d.ID); known {
			d.ID, d.Added, d.NUMA = was.ID, was.Added, was.NUMA
			if !l.near(d.NUMA, m.Topology) {
				d.NUMA, same = l.numa(m.Topology), false
			}
			same = same && was.Healthy == d.Healthy
		} else {
			d.Added, d.NUMA, same = come.added(d.ID), l.numa(m.Topology), false
		}
		order[at] = int32(len(devices))
		devices = append(devices, d)
	}
	gone := old.end()

	l.order = nil
	if found == (faults{}) {
		l.order = order
	}
	switch {
	case !same || len(gone) > 0:
		l.deviceList = l.with(devices, gone, come.stamp, l.most)
	default:
		l.listed, l.newest = true, max(l.newest, 1)
	}
	return found
}

// leaveOut takes back what the latest message has added to the list before it, and returns the number of devices that it leaves out. The list weighs at most
// what that before did: a device that returns and is near several NUMA nodes counts as near none until a later list has room.
// If the message has none of the former devices, its devices have their room.
func (l *lister) leaveOut(before deviceList) (out int) {
	old, changed := walk{rest: before.devices}, false
	var kept []device.Device
	for _, d := range l.devices {
		if was, known := old.find(d.ID); known {
			changed = changed || was.Healthy != d.Healthy
			d.NUMA = was.NUMA
		} else if _, returns := before.absent[d.ID]; returns {
			changed = true
			if len(d.NUMA) > 1 {
				d.NUMA = nil // an absent device weighs as much as one without a node
			}
		} else {
			out++
			continue
		}
		kept = append(kept, d)
	}
	gone := old.end()
	stamp := int64(0)
	if len(kept) == 0 {
		kept, stamp = l.within(before.weight())
		out -= len(kept)
	}
	l.order = nil
	switch {
	case changed || len(gone) > 0 || stamp > 0:
		l.deviceList = before.with(kept, gone, stamp, l.most)
	default:
		l.deviceList = before
	}
	l.listed, l.newest = true, max(l.newest, 1)
	return out
}

// within returns the first devices that weigh together at most room, and when the newest of them was added.
func (l *lister) within(room int) (first []device.Device, newest int64) {
	for i := range l.devices {
		if room -= l.devices[i].Weight(); room < 0 {
			break
		}
		first, newest = l.devices[:i+1:i+1], max(newest, l.devices[i].Added)
	}
	return first, newest
}

// near reports whether numa(t) equals nodes, mostly without computing it.
func (l *lister) near(nodes []int, t *pluginapi.TopologyInfo) bool {
	switch len(t.GetNodes()) {
	case 0:
		return len(nodes) == 0
	case 1:
		id := t.Nodes[0].GetID()
		return !counts(id) && len(nodes) == 0 || counts(id) && len(nodes) == 1 && nodes[0] == int(id)
	}
	return slices.Equal(nodes, l.numa(t))
}

// counts reports whether a NUMA node's number is valid.
func counts(id int64) bool { return 0 <= id && id <= maxNode }

// impossible reports whether a topology names a NUMA node above maxNode, or more than maxNodes.
func impossible(t *pluginapi.TopologyInfo) bool {
	return len(t.GetNodes()) > maxNodes || slices.ContainsFunc(t.GetNodes(), func(n *pluginapi.NUMANode) bool { return n.GetID() > maxNode })
}

// numa returns the NUMA nodes of a topology, ascending, without duplicates and invalid ones; none of more than maxNodes. Some
// plugins name a negative node for none.
func (l *lister) numa(t *pluginapi.TopologyInfo) []int {
	switch n := len(t.GetNodes()); {
	case n == 1:
		return l.single(t.Nodes[0].GetID())
	case n > maxNodes:
		return nil
	}
	var nodes []int
	for _, n := range t.GetNodes() {
		if counts(n.GetID()) {
			nodes = append(nodes, int(n.GetID()))
		}
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

// single returns the list of one node, shared by all devices near it.
func (l *lister) single(id int64) []int {
	if !counts(id) {
		return nil
	}
	nodes, ok := l.nodes[id]
	if !ok {
		if l.nodes == nil {
			l.nodes = make(map[int64][]int)
		}
		nodes = []int{int(id)}
		l.nodes[id] = nodes
	}
	return nodes
}
