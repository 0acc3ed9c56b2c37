package allocator

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A preferenceKey identifies one container's devices of one resource.
type preferenceKey struct {
	container string
	resource  device.ResourceName
}

// preferences are the plugins' answers during one attempt. A key that is present has been asked, even if its answer was
// useless. nil: no plugin is asked.
type preferences map[preferenceKey][]device.ID

// A preferenceRequest is a GetPreferredAllocation call: it asks for size of the available devices, must included.
type preferenceRequest struct {
	container device.Container
	resource  device.ResourceName
	available []device.ID // ascending
	must      []device.ID // ascending
	size      int
}

func (q preferenceRequest) key() preferenceKey { return preferenceKey{q.container.Name, q.resource} }

// valid reports whether an answer matches the request.
func (q preferenceRequest) valid(answer []device.ID) bool {
	sorted := slices.Sorted(slices.Values(answer))
	if len(slices.Compact(sorted)) != q.size || len(answer) != q.size {
		return false
	}
	for _, id := range sorted {
		if _, available := slices.BinarySearch(q.available, id); !available {
			return false
		}
	}
	for _, id := range q.must {
		if _, included := slices.BinarySearch(sorted, id); !included {
			return false
		}
	}
	return true
}
