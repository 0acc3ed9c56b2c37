package allocatortest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Plugins has offers and answers that a test sets.
type Plugins struct {
	changed chan struct{}
	accept  func(device.ResourceName) // waits until the allocator has the newest offer of the resource

	mu     sync.Mutex
	offers map[device.ResourceName]device.Offer
	answer func(context.Context) error
	grant  func([]device.ID) device.Grant
}

func newPlugins() *Plugins {
	return &Plugins{changed: make(chan struct{}, 1), offers: map[device.ResourceName]device.Offer{}}
}

// Offer replaces the offer of a resource, and returns when the allocator has it.
func (p *Plugins) Offer(r device.ResourceName, state device.OfferState, devices ...device.Device) {
	p.mu.Lock()
	p.offers[r] = device.Offer{Inventory: device.Inventory{Resource: r, Devices: devices}, State: state, Reported: true, Newest: 1}
	p.mu.Unlock()
	loops.Signal(p.changed)
	p.accept(r)
}

// Stock offers n healthy devices, with IDs d000, d001 and so on.
func (p *Plugins) Stock(r device.ResourceName, n int) {
	devices := make([]device.Device, n)
	for i := range devices {
		devices[i] = device.Device{ID: device.ID(fmt.Sprintf("d%03d", i)), Healthy: true}
	}
	p.Offer(r, device.Serving, devices...)
}

// Answer makes each Allocate end as f does; nil: it succeeds at once.
func (p *Plugins) Answer(f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = f
}

// Grants makes each Allocate return f's grant.
func (p *Plugins) Grants(f func([]device.ID) device.Grant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grant = f
}

// Offers is part of allocator.Plugins, like the methods below.
func (p *Plugins) Offers() map[device.ResourceName]device.Offer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.offers)
}

// Changed signals that an offer has changed.
func (p *Plugins) Changed() <-chan struct{} { return p.changed }

// Allocate returns the grant or the error that a test has set.
func (p *Plugins) Allocate(ctx context.Context, _ device.Pod, _ device.Container, _ device.ResourceName, ids []device.ID) (got device.Grant, err error) {
	p.mu.Lock()
	answer, grant := p.answer, p.grant
	p.mu.Unlock()
	if grant != nil {
		got = grant(ids)
	}
	if answer != nil {
		err = answer(ctx)
	}
	return got, err
}

// Prefer is never called.
func (p *Plugins) Prefer(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID, []device.ID, int) ([]device.ID, error) {
	return nil, errors.New("not expected to be called")
}

// Forget drops an offer, unless its state is Serving.
func (p *Plugins) Forget(r device.ResourceName) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o, is := p.offers[r]; is && o.State == device.Serving {
		return &device.InUseError{Resource: r, Serving: true}
	}
	delete(p.offers, r)
	return nil
}

// PreStart does nothing.
func (p *Plugins) PreStart(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) error {
	return nil
}
