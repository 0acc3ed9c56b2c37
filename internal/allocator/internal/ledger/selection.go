package ledger

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
)

// selections remembers which devices of a list selections select. The list's IDs decide that, so a change of health or places does not matter.
type selections struct {
	mu    sync.Mutex
	known map[string]bitset.Set // by Selection.Key; the sets never change
}

// maxSelections is how many selections are remembered for one list of IDs. A pod has fewer.
const maxSelections = 256

// Match returns the devices that a selection selects, and remembers them. No other step of a plan costs as much as a pod's author likes, so the
// allocator does it beforehand, without its lock.
func (l *Listing) Match(s device.Selection) bitset.Set {
	m, key := l.matched, s.Key()
	m.mu.Lock()
	known, found := m.known[key]
	m.mu.Unlock()
	if found {
		return known
	}
	all := bitset.New(len(l.devices))
	for i, d := range l.devices {
		if s.Selects(d.ID) {
			all.Add(i)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxSelections {
		clear(m.known)
	}
	m.known[key] = all.Set
	return all.Set
}
