package allocator

import (
	"context"
	"errors"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
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
func (a *Allocator) allocate(ctx context.Context, pod device.Pod, c device.Container, s device.Share) (device.Grant, error) {
	grant, session, has := a.keptGrant(c, s)
	if has {
		return grant, nil
	}
	grant, err := a.cfg.Plugins.Allocate(ctx, pod, c, s.Resource, s.IDs)
	a.answered(c, s, session, grant, err)
	return grant, err
}

// keptGrant returns a kept grant or, where there is none, the session of the plugin that is about to be asked, or of the one before.
func (a *Allocator) keptGrant(c device.Container, s device.Share) (grant device.Grant, session uint64, has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := a.ledger.Resources[s.Resource]
	session = resource.Offer().Session
	p := a.pods[c.Pod]
	if p == nil {
		return grant, session, false
	}
	for _, k := range p.kept {
		if k.container == c.Name && k.resource == s.Resource && slices.Equal(k.ids, s.IDs) && k.session == session && resource.GrantedLast(s.IDs, c.Pod) {
			return k.grant, session, true
		}
	}
	return grant, session, false
}

// dropKept has a pod's plugins asked again for all grants.
func (a *Allocator) dropKept(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[uid]; p != nil {
		p.kept = nil
	}
}

// answered records whether a plugin has granted or refused these devices. A disconnected plugin has done neither, and the answer of a process that another
// one has replaced meanwhile says nothing of that one.
func (a *Allocator) answered(c device.Container, s device.Share, session uint64, grant device.Grant, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		found := ledger.Denied
		if errors.Is(err, device.ErrNotAsked) {
			found = ledger.Unasked
		}
		if why := waitFor(err); session == a.ledger.Resources[s.Resource].Offer().Session && (why.Reason == device.PluginError || why.Reason == device.PluginSlow) {
			a.refuseLocked(s, why.Message, found)
		}
		return
	}
	if a.ledger.Grant(s.Resource, s.IDs, c.Pod) {
		a.reconsiderLocked(s.Resource)
	}
	if p := a.pods[c.Pod]; p != nil {
		p.kept = append(slices.DeleteFunc(p.kept, func(k kept) bool { return k.container == c.Name && k.resource == s.Resource }),
			kept{c.Name, s.Resource, s.IDs, session, grant})
	}
}
