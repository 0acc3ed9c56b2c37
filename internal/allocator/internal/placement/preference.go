package placement

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A PreferenceKey identifies one container's devices of one resource.
type PreferenceKey struct {
	Container string
	Resource  device.ResourceName
}

// Preferences are the plugins' answers during one attempt. A key that is present has been asked, even if its answer was
// useless. nil: no plugin is asked.
type Preferences map[PreferenceKey][]device.ID

// A PreferenceRequest is a GetPreferredAllocation call: it asks for size of the available devices, must included.
type PreferenceRequest struct {
	Container device.Container
	Resource  device.ResourceName
	Available []device.ID // ascending
	Must      []device.ID // ascending
	Size      int
}

func (q PreferenceRequest) Key() PreferenceKey { return PreferenceKey{q.Container.Name, q.Resource} }

// Valid reports whether an answer matches the request.
func (q PreferenceRequest) Valid(answer []device.ID) bool {
	within := func(ids, sorted []device.ID) bool {
		return !slices.ContainsFunc(ids, func(id device.ID) bool { _, is := slices.BinarySearch(sorted, id); return !is })
	}
	chosen := slices.Compact(slices.Sorted(slices.Values(answer)))
	return len(answer) == q.Size && len(chosen) == q.Size && within(chosen, q.Available) && within(q.Must, chosen)
}
