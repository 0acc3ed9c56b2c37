package placement

import (
	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
)

// patternWork is what one pattern of a selection that has been matched costs in a plan.
const patternWork = 4

// matching returns the devices of a resource that a selection selects.
func (p *planner) matching(r device.ResourceName, s device.Selection) bitset.Set {
	all := p.from[r].Listing().Match(s)
	*p.work -= patternWork*(len(s.Use)+len(s.Avoid)) + all.Len()
	return all
}

// selectedByOthers returns the devices of a resource that the pod's containers name; zero: they name none.
func (p *planner) selectedByOthers(r device.ResourceName) bitset.Set {
	named, known := p.named[r]
	if known {
		return named
	}
	var all bitset.Mutable
	for _, d := range p.Demand.Demands {
		if selection, limited := d.Select[r]; limited && len(selection.Use) > 0 {
			if all.IsZero() {
				all = bitset.New(len(p.from[r].Listing().Devices()))
			}
			all.Join(p.matching(r, selection))
		}
	}
	p.named[r] = all.Set
	return all.Set
}
