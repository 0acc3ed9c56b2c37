package podresources

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An entryCache keeps what has been drawn of each holding for as long as the holding is on the board. Its pages are never changed.
type entryCache[T any] struct {
	encode func(*device.PodAllocation) T

	mu       sync.Mutex
	snapshot *device.Snapshot
	entries  map[*device.PodAllocation]T
}

// of returns what is drawn of each holding on the board.
func (a *entryCache[T]) of(b *device.Snapshot) map[*device.PodAllocation]T {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.snapshot == b {
		return a.entries
	}
	pages := make(map[*device.PodAllocation]T, len(b.Pods))
	for _, h := range b.Pods {
		page, drawn := a.entries[h]
		if !drawn {
			page = a.encode(h)
		}
		pages[h] = page
	}
	if a.snapshot == nil || a.snapshot.Revision < b.Revision { // or somebody was faster, with a newer one
		a.snapshot, a.entries = b, pages
	}
	return pages
}
