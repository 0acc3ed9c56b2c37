package allocator

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// maxRetired is the number of forgotten resources that the Node may still show, beyond which a resource is not displaced: plugins choose their names, and the API
// server may be away.
const maxRetired = 4096

var errTooManyRetired = fmt.Errorf("%d forgotten resources have to be taken off the Node first, for which the API server has to be there", maxRetired)

var errRuntimeUnknown = errors.New("the container runtime has not listed its containers yet, and one may use the resource; see devmgrd status")

// Forget drops a resource and returns its cordons, which go too. It fails with a *device.InUseError if a plugin serves the
// resource, or a pod has or requests its devices, and with a *device.UnsavedError after a failed commit. When Forget returns nil, the removal is durable, and so is the note to take
// the resource off the Node.
func (a *Allocator) Forget(r device.ResourceName) (lifted []device.Cordon, err error) {
	return a.forget(r, false)
}

// Displace is Forget for a lost resource whose place another one needs: pods may go on requesting it, and wait.
func (a *Allocator) Displace(r device.ResourceName) error {
	_, err := a.forget(r, true)
	return err
}

// forget is Forget, or Displace.
func (a *Allocator) forget(r device.ResourceName, displaces bool) (lifted []device.Cordon, err error) {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	a.mu.Lock()
	if a.syncedAt.IsZero() {
		a.mu.Unlock()
		return nil, errRuntimeUnknown
	}
	users := a.usedByLocked(r)
	inUse := len(users) > 0
	if displaces {
		inUse = a.useLocked(r) == device.Kept
	}
	full := displaces && len(a.retired) >= maxRetired
	lifted = slices.SortedFunc(maps.Values(a.cordons[r]), func(x, y device.Cordon) int { return device.CompareIDs(x.ID, y.ID) })
	a.mu.Unlock()
	if inUse {
		return nil, &device.InUseError{Resource: r, Pods: users}
	}
	if full {
		return nil, errTooManyRetired
	}
	if err := a.cfg.Registry.Forget(r); err != nil {
		// A plugin may have registered after the state file had dropped the cordons.
		a.mu.Lock()
		if l := a.flapping[r]; l != nil {
			for _, rec := range l.Records() {
				a.recordLocked(r, rec.ID)
			}
		}
		a.mu.Unlock()
		if lost := a.cfg.Store.SaveCordons(lifted, nil); lost != nil {
			err = fmt.Errorf("%w; its cordons may last only until devmgrd restarts: %w", err, lost)
		} else if errors.As(err, new(*device.InUseError)) {
			return nil, err
		}
		return nil, &device.UnsavedError{Err: err}
	}
	a.refresh()
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.cordons, r)
	delete(a.suspended, r)
	delete(a.flapping, r)
	delete(a.downturns, r)
	delete(a.suspensionsDue, r)
	if resource := a.ledger.Lookup(r); !resource.Offered() || resource.Offer().State != device.Serving { // a plugin may have registered it meanwhile
		a.retired[r] = true
	}
	a.cordonsChangedLocked([]device.Cordon{{Resource: r}})
	a.metrics.forget(r)
	if a.cfg.Releaser != nil {
		a.cfg.Releaser.ForgetResource(r)
	}
	a.pruneLocked(r)
	a.cfg.Log.Info("resource forgotten", "resource", r, "uncordoned", len(lifted))
	return lifted, nil
}

// Uses returns what keeps each of these lost resources.
func (a *Allocator) Uses(all []device.ResourceName) map[device.ResourceName]device.Use {
	uses := make(map[device.ResourceName]device.Use, len(all))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range all {
		uses[r] = a.useLocked(r)
	}
	return uses
}

// useLocked costs as much with many devices and pods as with few.
func (a *Allocator) useLocked(r device.ResourceName) device.Use {
	switch resource := a.ledger.Lookup(r); {
	case len(a.cordons[r]) > 0 || len(a.declared[r]) > 0 || resource.TakenCount() > 0 || resource.NamedByClaims():
		return device.Kept
	case resource.Requests() > 0 || a.localsWantLocked(r):
		return device.Requested
	case len(a.suspended[r]) > 0:
		return device.HasSuspended
	}
	return device.Unused
}

// localsWantLocked reports whether a pod that the API server does not have requests a resource.
func (a *Allocator) localsWantLocked(r device.ResourceName) bool {
	for _, p := range a.locals {
		if p.active() && slices.ContainsFunc(p.demand.Demands, func(d device.Demand) bool { return d.Wants[r] > 0 }) {
			return true
		}
	}
	return false
}

// usedByLocked returns the pods that have or request devices of a resource.
func (a *Allocator) usedByLocked(r device.ResourceName) []device.Pod {
	users := map[device.PodUID]device.Pod{}
	for uid, p := range a.pods {
		if p.active() && p.demand.Requests()[r] > 0 {
			users[uid] = p.demand.Pod
		}
	}
	resource := a.ledger.Lookup(r)
	for id := range resource.Taken() {
		for uid := range resource.Holders(id) {
			users[uid] = device.Pod{UID: uid}
			if a.pods[uid] != nil {
				users[uid] = a.pods[uid].demand.Pod
			}
		}
	}
	return slices.SortedFunc(maps.Values(users), func(x, y device.Pod) int { return strings.Compare(x.String(), y.String()) })
}

// retractLocked drops the offers of resources that the plugins have forgotten. It reports whether there was one.
func (a *Allocator) retractLocked(offers map[device.ResourceName]device.Offer) (dropped bool) {
	for r, resource := range a.ledger.Resources {
		if _, is := offers[r]; !is && resource.Offered() {
			a.ledger.Retract(r)
			a.wakeLocked(r, false)
			a.pruneLocked(r)
			dropped = true
		}
	}
	return dropped
}

// retiredLocked returns the forgotten resources that the Node should no longer show: neither offered nor used since.
func (a *Allocator) retiredLocked() []device.ResourceName {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(a.retired)), func(r device.ResourceName) bool {
		resource := a.ledger.Lookup(r)
		return resource.Offered() || resource.TakenCount() > 0 || resource.Requests() > 0
	})
}

// ResourcesRemoved confirms that the Node shows none of these resources.
func (a *Allocator) ResourcesRemoved(gone []device.ResourceName) error {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.cfg.Store.DropRetired(gone); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range gone {
		delete(a.retired, r)
	}
	return nil
}
