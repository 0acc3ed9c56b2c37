package placement

import (
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// selections remembers which devices of a list selections select. The list's IDs decide that, so a change of health or places does not matter.
type selections struct {
	mu    locks.Mutex[locks.Leaf]
	known map[string]bitset // by Selection.Key; the sets never change
}

// maxSelections is how many selections are remembered for one list of IDs. A pod has fewer.
const maxSelections = 256

// Match compares the devices with a selection and remembers the result. No other step of a plan costs as much as a pod's author likes, so the
// allocator does it beforehand, without its lock.
func (l *Listing) Match(s device.Selection) { l.matching(s) }

// matching returns the devices that a selection selects. Callers do not change the set.
func (l *Listing) matching(s device.Selection) bitset {
	m, key := l.matched, s.Key()
	m.mu.Lock()
	all, known := m.known[key]
	m.mu.Unlock()
	if known {
		return all
	}
	all = newBitset(len(l.devices))
	for i, d := range l.devices {
		if s.Selects(d.ID) {
			all.add(i)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxSelections {
		clear(m.known)
	}
	m.known[key] = all
	return all
}

// patternWork is what one pattern of a selection that has been matched costs in a plan.
const patternWork = 4

// matching returns the devices of a resource that a selection selects.
func (p *planner) matching(r device.ResourceName, s device.Selection) bitset {
	all := p.from[r].listing.matching(s)
	*p.work -= patternWork*(len(s.Use)+len(s.Avoid)) + len(all)
	return all
}

// selectedByOthers returns the devices of a resource that the pod's containers name; nil: they name none.
func (p *planner) selectedByOthers(r device.ResourceName) bitset {
	all, known := p.named[r]
	if known {
		return all
	}
	for _, d := range p.Demand.Demands {
		if selection, limited := d.Select[r]; limited && len(selection.Use) > 0 {
			if all == nil {
				all = newBitset(len(p.from[r].listing.devices))
			}
			all.join(p.matching(r, selection))
		}
	}
	p.named[r] = all
	return all
}
