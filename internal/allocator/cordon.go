package allocator

import (
	"reflect"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Cordon takes devices out of service, or changes the reason. If a device is unknown, Cordon changes nothing and returns a
// *device.UnknownDeviceError, and after a failed commit a *device.UnsavedError. When Cordon returns nil, the cordons are durable, and
// from then on no pod is assigned these devices. Cordon returns the cordoned devices that pods hold; these pods keep them until they end.
func (a *Allocator) Cordon(cordons []device.Cordon) (held []device.Cordon, err error) {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.checkKnown(cordons); err != nil {
		return nil, err
	}
	if err := a.cfg.Store.SaveCordons(cordons, nil); err != nil {
		return nil, &device.UnsavedError{Err: err}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cordons.Add(cordons...)
	for _, c := range cordons {
		if a.ledger.Of(c.Resource).IsTaken(c.ID) {
			held = append(held, c)
		}
		a.cfg.Log.Info("device cordoned", "resource", c.Resource, "device", c.ID, "reason", c.Reason)
	}
	a.cordonsChangedLocked(cordons)
	return held, nil
}

// Uncordon returns devices to service, unless the Node's annotation declares them cordoned too. It ends suspensions as well. It returns
// those that were cordoned or suspended and ignores the others. An unknown device makes it change nothing, as with Cordon, and so does a device that is
// cordoned by the annotation only: a *device.DeclaredCordonError. A *device.UnsavedError is as with Cordon. With a busy device of an ended pod, all of that pod's devices are released.
func (a *Allocator) Uncordon(devices []device.Cordon) ([]device.Cordon, error) {
	lifted, err := a.uncordon(devices)
	if err != nil {
		return nil, err
	}
	if err := a.commitFalls(); err != nil {
		return lifted, &device.UnsavedError{Err: err} // the writer tries again
	}
	return lifted, nil
}

// uncordon is Uncordon, and leaves the records of falls to be written.
func (a *Allocator) uncordon(devices []device.Cordon) (lifted []device.Cordon, err error) {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.checkKnown(devices); err != nil {
		return nil, err
	}
	var accepted []device.Cordon // those of ended pods
	var falls []device.Falls
	a.mu.Lock()
	for _, d := range devices {
		if rec, known := a.fallsLocked(device.Key{Resource: d.Resource, ID: d.ID}); known {
			falls = append(falls, rec)
		}
		if c, cordoned := a.cordons[d.Resource][d.ID]; cordoned {
			lifted = append(lifted, c)
		} else if c, suspended := a.suspended[d.Resource][d.ID]; suspended {
			lifted = append(lifted, c)
		} else if _, declared := a.declared[d.Resource][d.ID]; declared {
			err = &device.DeclaredCordonError{Resource: d.Resource, ID: d.ID}
		}
	}
	a.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if len(lifted) > 0 {
		if err := a.cfg.Store.SaveCordons(nil, lifted); err != nil {
			return nil, &device.UnsavedError{Err: err}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range devices {
		if c, busy := a.acceptLocked(d); busy {
			accepted = append(accepted, c)
		}
	}
	a.cordons.Remove(lifted...)
	a.suspended.Remove(lifted...)
	for _, rec := range falls {
		if l := a.flapping[rec.Resource]; l != nil {
			l.Forget(rec.ID)
		}
		a.recordLocked(rec.Resource, rec.ID)
	}
	for _, d := range devices {
		a.ledger.Pardon(d.Resource, d.ID)
	}
	for _, c := range lifted {
		a.cfg.Log.Info("device uncordoned", "resource", c.Resource, "device", c.ID)
	}
	a.cordonsChangedLocked(lifted)
	return append(lifted, accepted...), nil
}

// DeclareCordons replaces the cordons that the Node's annotation declares. They are in force next to those of Cordon and
// Uncordon. The devices need not be known. When DeclareCordons returns nil, the cordons are durable and in force.
func (a *Allocator) DeclareCordons(cordons []device.Cordon) error {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	next := device.Cordons{}
	a.mu.Lock()
	before := a.declared
	a.mu.Unlock()
	for i, c := range cordons {
		cordons[i].Declared = true
		if was, known := before[c.Resource][c.ID]; known && was.Reason == c.Reason {
			cordons[i].Since = was.Since
		}
	}
	next.Add(cordons...)
	added, removed := next.Without(before), before.Without(next)
	if len(added)+len(removed) == 0 {
		return nil
	}
	if err := a.cfg.Store.SaveDeclaredCordons(cordons); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.declared = next
	for _, c := range added {
		a.cfg.Log.Info("device cordoned", "resource", c.Resource, "device", c.ID, "reason", c.Reason, "annotation", device.CordonAnnotation)
	}
	for _, c := range removed {
		if _, still := next[c.Resource][c.ID]; !still {
			a.cfg.Log.Info("device uncordoned", "resource", c.Resource, "device", c.ID, "annotation", device.CordonAnnotation)
		}
	}
	a.cordonsChangedLocked(append(added, removed...))
	return nil
}

// idleCordonedLocked returns the cordoned devices of a resource that no pod has. They cannot be assigned.
func (a *Allocator) idleCordonedLocked(r device.ResourceName) map[device.ID]bool {
	all := map[device.ID]bool{}
	for id := range a.inForce[r] {
		if !a.ledger.Of(r).IsTaken(id) {
			all[id] = true
		}
	}
	return all
}

// checkKnown fails if a device is neither listed nor taken nor cordoned: then its name is a mistake.
func (a *Allocator) checkKnown(devices []device.Cordon) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range devices {
		resource := a.ledger.Lookup(d.Resource)
		if _, known := a.inForce[d.Resource][d.ID]; !known && !resource.Listing().Lists(d.ID) && !resource.IsTaken(d.ID) {
			return &device.UnknownDeviceError{Resource: d.Resource, ID: d.ID}
		}
	}
	return nil
}

// cordonsChangedLocked makes plans and capacity follow the changed cordons of these devices.
func (a *Allocator) cordonsChangedLocked(devices []device.Cordon) {
	done := map[device.ResourceName]bool{}
	for _, d := range devices {
		if !done[d.Resource] {
			done[d.Resource] = true
			a.combineCordonsLocked(d.Resource)
			a.refreshCordonsLocked(d.Resource)
			a.wakeLocked(d.Resource, false)
		}
	}
	a.changedLocked()
	loops.Signal(a.kick)
}

// combineCordonsLocked computes the cordons of a resource that are in force.
func (a *Allocator) combineCordonsLocked(r device.ResourceName) {
	operators := device.Cordons{r: a.cordons.Union(a.declared, r)}
	a.inForce[r] = operators.Union(a.suspended, r)
	if len(a.inForce[r]) == 0 {
		delete(a.inForce, r)
	}
}

// refreshCordonsLocked rebuilds a resource's listing if its cordons have changed.
func (a *Allocator) refreshCordonsLocked(r device.ResourceName) {
	if l := a.ledger.Of(r).Listing(); !sameMap(l.Cordons(), a.inForce[r]) {
		a.ledger.SetListing(r, ledger.NewListing(l.Devices(), a.inForce[r], a.cfg.Ordering(r), l))
	}
}

// sameMap reports whether two variables hold the same map. Maps are replaced and never changed.
func sameMap[K comparable, V any](a, b map[K]V) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer())
}
