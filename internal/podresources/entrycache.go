package podresources

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An entryCache keeps the encoded entry of each pod in the latest snapshot. Entries never change.
type entryCache[T any] struct {
	encode func(*device.PodAllocation) T

	mu       sync.Mutex
	revision uint64
	entries  map[*device.PodAllocation]T
}

// of returns the entries of a snapshot's pods.
func (c *entryCache[T]) of(s *device.Snapshot) map[*device.PodAllocation]T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries != nil && c.revision == s.Revision {
		return c.entries
	}
	entries := make(map[*device.PodAllocation]T, len(s.Pods))
	for _, p := range s.Pods {
		e, cached := c.entries[p.PodAllocation]
		if !cached {
			e = c.encode(p.PodAllocation)
		}
		entries[p.PodAllocation] = e
	}
	if c.entries == nil || c.revision < s.Revision { // a concurrent request may have had a newer snapshot
		c.revision, c.entries = s.Revision, entries
	}
	return entries
}
