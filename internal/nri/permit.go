package nri

import (
	"errors"
	"path/filepath"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Rules are the operator's rules for what device plugins may grant. Their methods return at once; their errors are *device.Refusal.
type Rules interface {
	// MayGrant returns an error if the container must not have what the plugin grants.
	MayGrant(to device.PodContainer, resource device.ResourceName, grant device.Grant) error
	// MayMount returns an error if the container must not have the path of the host to which a granted mount source leads.
	MayMount(to device.PodContainer, resource device.ResourceName, granted, real string) error
	// MayHave returns an error if the container must not have the device of the host to which a granted path leads.
	MayHave(to device.PodContainer, resource device.ResourceName, granted string, n device.HostNode) error
}

// A permit asks the rules about one container's grants. A nil permit allows all.
type permit struct {
	rules Rules
	to    device.PodContainer
	// Whose plugins have granted a path of the host, as a mount source and as a device.
	mounts, nodes map[string][]device.ResourceName
}

// permitted returns a permit for a container, or an error if the rules do not allow one of its grants. The grants may be older than
// the rules.
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

// mount returns an error if a granted mount source must not lead where it does.
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

// devices returns an error if one of the devices at a granted path must not be there.
func (m *permit) devices(granted string, found hostDevices) error {
	if m == nil {
		return nil
	}
	for _, resource := range m.nodes[granted] {
		for _, n := range found.nodes {
			node := device.HostNode{Path: filepath.Join(found.real, n.path), Kind: n.kind, Major: n.major}
			if err := m.rules.MayHave(m.to, resource, filepath.Join(granted, n.path), node); err != nil {
				return lapsed(err)
			}
		}
	}
	return nil
}

// lapsed returns a refusal after which the plugin is asked again: it may have been changed, or the rules.
func lapsed(err error) error {
	if no := new(device.Refusal); errors.As(err, &no) {
		return device.Refuse(no.Reason, errLapsed, "%s", no.Message)
	}
	return err
}
