package pluginrules

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// Bounds of what is remembered of grants.
const (
	maxSeen    = 512  // resources
	ownNames   = 64   // names of one resource that have room in any case
	maxNames   = 1024 // names of one resource
	maxFurther = 8192 // names of all resources beyond ownNames of each
	maxName    = 512  // bytes of a name
	maxPattern = 1024 // bytes of its pattern
	maxIDs     = 256  // device IDs of one grant that are looked for in its names
)

// memory remembers what plugins have granted since devmgrd's start.
type memory struct {
	mu      locks.Mutex[locks.Leaf]
	all     map[device.ResourceName]*remembered
	further int  // names beyond ownNames of each resource
	full    bool // there was no room for a resource
}

type remembered struct {
	env, mounts, devices, annotations, kinds map[string]string // patterns by text
	n                                        int               // names
	full                                     bool              // there was no room for a name
}

// note adds a grant.
func (m *memory) note(resource device.ResourceName, ids []device.ID, g device.Grant) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.all[resource]
	if r == nil && len(m.all) >= maxSeen {
		m.full = true
		return
	}
	if r == nil {
		r = &remembered{
			env: map[string]string{}, mounts: map[string]string{}, devices: map[string]string{},
			annotations: map[string]string{}, kinds: map[string]string{},
		}
		lists.Put(&m.all, device.ResourceName(strings.Clone(string(resource))), r)
	}
	var names []string // of the devices; made when they are needed
	add := func(to map[string]string, text string) {
		if _, has := to[text]; has {
			return
		}
		if r.n >= maxNames || r.n >= ownNames && m.further >= maxFurther || len(text) > maxName {
			r.full = true
			return
		}
		if names == nil {
			names = lists.Strings(ids[:min(len(ids), maxIDs)])
		}
		text = strings.Clone(text) // it may be a part of a much longer one
		pattern := generalize(text, names)
		if len(pattern) > maxPattern {
			r.full = true
			return
		}
		to[text] = pattern
		r.n++
		if r.n > ownNames {
			m.further++
		}
	}
	for name := range g.Env {
		add(r.env, name)
	}
	for _, mount := range g.Mounts {
		add(r.mounts, path.Clean(mount.HostPath))
	}
	for _, n := range g.Nodes {
		add(r.devices, path.Clean(n.HostPath))
	}
	for key, value := range g.Annotations {
		if !strings.HasPrefix(key, device.CDIAnnotations) {
			add(r.annotations, key)
			continue
		}
		for name := range strings.SplitSeq(value, ",") {
			add(r.kinds, kindOf(name))
		}
	}
	for _, name := range g.CDI {
		add(r.kinds, kindOf(name))
	}
}

// list returns what is remembered, by resource. Full without a name stands for all others.
func (m *memory) list() []device.PluginGrants {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []device.PluginGrants
	for _, resource := range slices.Sorted(maps.Keys(m.all)) {
		r := m.all[resource]
		all = append(all, device.PluginGrants{
			Resource: resource, Env: sorted(r.env), Mounts: sorted(r.mounts), Devices: sorted(r.devices),
			Annotations: sorted(r.annotations), CDIKinds: sorted(r.kinds), Full: r.full,
		})
	}
	if m.full {
		all = append(all, device.PluginGrants{Full: true})
	}
	return all
}

func sorted(patterns map[string]string) []device.GrantName {
	return lists.Map(slices.Sorted(maps.Keys(patterns)), func(text string) device.GrantName { return device.GrantName{Text: text, Pattern: patterns[text]} })
}

// kindOf returns the vendor and the class of a CDI device's name.
func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, "=")
	return kind
}
