package nri

import (
	"errors"
	"path/filepath"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Rules are the operator's rules for grants of device plugins. Their methods return at once; their errors are *device.Refusal.
type Rules interface {
	// MayGrant returns an error if the rules forbid a container's grants.
	MayGrant(to device.PodContainer, resource device.ResourceName, grant device.Grant) error
	// MayMount returns an error if the rules forbid to mount path, to which a granted mount source leads.
	MayMount(to device.PodContainer, resource device.ResourceName, granted, real string) error
	// MayHave returns an error if the rules forbid a device of the host, to which a granted path leads.
	MayHave(to device.PodContainer, resource device.ResourceName, granted string, n device.HostNode) error
}

// A permit applies the rules to one container's grants. A nil permit allows all.
type permit struct {
	rules Rules
	to    device.PodContainer
	// The plugins that granted a path of the host, as a mount source and as a device.
	mounts, nodes map[string][]device.ResourceName
}

// permitted returns a permit for a container, or an error if the rules forbid one of its grants, which may be older than the rules.
func permitted(rules Rules, to device.PodContainer, shares []device.Share) (*permit, error) {
	if rules == nil {
		return nil, nil
	}
	may := &permit{rules, to, map[string][]device.ResourceName{}, map[string][]device.ResourceName{}}
	for _, s := range shares {
		if err := rules.MayGrant(to, s.Resource, s.Grant); err != nil {
			return nil, lapsed(err)
		}
		for _, m := range s.Grant.Mounts {
			may.mounts[m.HostPath] = append(may.mounts[m.HostPath], s.Resource)
		}
		for _, n := range s.Grant.Nodes {
			may.nodes[n.HostPath] = append(may.nodes[n.HostPath], s.Resource)
		}
	}
	return may, nil
}

// mount returns an error if the rules forbid the place to which a granted mount source leads.
func (m *permit) mount(granted, real string) error {
	if m == nil {
		return nil
	}
	for _, resource := range m.mounts[granted] {
		if err := m.rules.MayMount(m.to, resource, granted, real); err != nil {
			return lapsed(err)
		}
	}
	return nil
}

// devices returns an error if the rules forbid one of the devices at a granted path.
func (m *permit) devices(granted string, found hostDevices) error {
	if m == nil {
		return nil
	}
	for _, resource := range m.nodes[granted] {
		for _, n := range found.nodes {
			node := device.HostNode{Path: filepath.Join(found.real, n.path), Kind: n.kind, Major: n.major, Minor: n.minor}
			if err := m.rules.MayHave(m.to, resource, filepath.Join(granted, n.path), node); err != nil {
				return lapsed(err)
			}
		}
	}
	return nil
}

// lapsed turns a rule's error into a refusal that ends with a new grant: the operator may have changed the plugin or the rules.
func lapsed(err error) error {
	if no := new(device.Refusal); errors.As(err, &no) {
		return device.Refuse(no.Reason, errLapsed, "%s", no.Message)
	}
	return err
}
