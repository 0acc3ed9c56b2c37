package device

import "fmt"

// Limits of plugins' answers to Allocate, in bytes as Size counts them.
const (
	// MaxGrant bounds all grants of one container together. The container runtime lists its containers to NRI plugins in
	// messages of at most 4 MiB and never splits them below four pods and four containers: four containers with larger
	// grants, and their own arguments and variables, would keep every NRI plugin from connecting. A process takes at most 128 KiB
	// in one variable anyway (MAX_ARG_STRLEN of Linux with pages of 4 KiB).
	MaxGrant = 256 << 10
	// MaxPodGrants bounds all grants of one pod together: they are one record of the state file.
	MaxPodGrants = 4 << 20

	// entrySize is added for each entry of a grant: the overhead of the encodings of the state file and of NRI.
	entrySize = 64
)

const (
	// deviceWeight is the memory of a device without its ID and its further NUMA nodes: in the inventory, in the allocator's
	// index, and in answers.
	deviceWeight = 256
	// nodeWeight is that of its second and each further NUMA node without the ID, which answers of PodResources and the mirror
	// of the kubelet's checkpoint repeat for each node.
	nodeWeight = 128
)

// Weight returns about how many bytes of memory the device takes: what plugins.maxTotalBytes limits.
func (d *Device) Weight() int {
	return deviceWeight + len(d.ID) + max(0, len(d.NUMA)-1)*(nodeWeight+len(d.ID))
}

// Size returns the number of bytes that a grant counts: its text, and a fixed number for each entry.
func (g Grant) Size() int {
	n := 0
	for k, v := range g.Env {
		n += entrySize + len(k) + len(v)
	}
	for _, m := range g.Mounts {
		n += m.size()
	}
	for _, d := range g.Nodes {
		n += d.size()
	}
	for _, name := range g.CDI {
		n += entrySize + len(name)
	}
	for k, v := range g.Annotations {
		n += entrySize + len(k) + len(v)
	}
	return n
}

func (m Mount) size() int { return entrySize + len(m.ContainerPath) + len(m.HostPath) }

func (n Node) size() int {
	return entrySize + len(n.ContainerPath) + len(n.HostPath) + len(n.Permissions)
}

// largest returns the field in the device plugin API and the size of a grant's largest entry.
func (g Grant) largest() (field string, size int) {
	see := func(n int, name func() string) {
		if n > size {
			field, size = name(), n
		}
	}
	texts := func(field string, all map[string]string) {
		for k, v := range all {
			see(entrySize+len(k)+len(v), func() string { return fmt.Sprintf("%s[%q]", field, Clip(k)) })
		}
	}
	texts("envs", g.Env)
	texts("annotations", g.Annotations)
	for i, m := range g.Mounts {
		see(m.size(), func() string { return fmt.Sprintf("mounts[%d]", i) })
	}
	for i, n := range g.Nodes {
		see(n.size(), func() string { return fmt.Sprintf("devices[%d]", i) })
	}
	for i, name := range g.CDI {
		see(entrySize+len(name), func() string { return fmt.Sprintf("cdi_devices[%d]", i) })
	}
	return field, size
}

// checkSize fails if a grant alone is too large for a container.
func (g Grant) checkSize() error {
	size := g.Size()
	if size <= MaxGrant {
		return nil
	}
	field, largest := g.largest()
	return fmt.Errorf("the grant has %d bytes, and %d are allowed; the largest entry is %s with %d", size, MaxGrant, field, largest)
}

// Grants sums up the grants of a container or of a pod.
type Grants struct {
	size, largest int
	of            ResourceName // whose grant is the largest
}

// Add adds the grants of shares.
func (g *Grants) Add(shares ...Share) {
	for _, s := range shares {
		size := s.Grant.Size()
		g.size += size
		if size > g.largest {
			g.largest, g.of = size, s.Resource
		}
	}
}

// CheckContainer returns a refusal if the grants exceed the limit of one container.
func (g *Grants) CheckContainer(name string) *Refusal {
	return g.check("container "+name, MaxGrant)
}

// CheckPod returns a refusal if the grants exceed the limit of one pod.
func (g *Grants) CheckPod() *Refusal { return g.check("the pod", MaxPodGrants) }

func (g *Grants) check(whose string, limit int) *Refusal {
	if g.size <= limit {
		return nil
	}
	return Refuse(PluginError, nil, "the device plugins grant %s %d bytes, and %d are allowed; the largest grant is for %s with %d",
		whose, g.size, limit, g.of, g.largest)
}
