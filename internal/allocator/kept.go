package allocator

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/placement"
)

// A plugin may refuse one container of a pod and grant another one: the grants that it has given are kept for the pod's next attempt with the same
// devices, and not asked for again. Some plugins count what they grant, and such a pod would never start. A grant is kept while the plugin is the same
// process, has granted the devices to no other pod, and no pod that had them has been released.

// A kept grant is a plugin's answer in an attempt that has failed.
type kept struct {
	container string
	resource  device.ResourceName
	ids       []device.ID
	session   uint64
	grant     device.Grant
}

// allocate asks a plugin for a grant, unless one is kept.
func (a *Allocator) allocate(ask func() (device.Grant, error), c device.Container, s device.Share) (device.Grant, error) {
	if grant, has := a.keptGrant(c, s); has {
		return grant, nil
	}
	grant, err := ask()
	a.answered(c, s, grant, err)
	return grant, err
}

func (a *Allocator) keptGrant(c device.Container, s device.Share) (grant device.Grant, has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[c.Pod]
	if p == nil {
		return grant, false
	}
	pool := a.table.Resources[s.Resource]
	for _, k := range p.kept {
		if k.container == c.Name && k.resource == s.Resource && slices.Equal(k.ids, s.IDs) && k.session == pool.Offer().Session && pool.GrantedLast(s.IDs, c.Pod) {
			return k.grant, true
		}
	}
	return grant, false
}

// dropKept has a pod's plugins asked again for all grants.
func (a *Allocator) dropKept(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[uid]; p != nil {
		p.kept = nil
	}
}

// answered records whether a plugin has granted or refused these devices. A disconnected plugin has done neither.
func (a *Allocator) answered(c device.Container, s device.Share, grant device.Grant, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	pool := a.table.Resources[s.Resource]
	if err != nil {
		if why := waitFor(err); why.Reason == device.PluginError || why.Reason == device.PluginSlow {
			a.refuseLocked(s, why.Message, placement.Denied)
		}
		return
	}
	if pool.Grant(s.IDs, c.Pod) {
		a.reconsiderLocked()
	}
	if p := a.pods[c.Pod]; p != nil {
		p.kept = append(slices.DeleteFunc(p.kept, func(k kept) bool { return k.container == c.Name && k.resource == s.Resource }),
			kept{c.Name, s.Resource, s.IDs, pool.Offer().Session, grant})
	}
}
