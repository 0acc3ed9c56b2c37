package allocator

import (
	"context"
	"errors"
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

// Results of preference requests, in the metric devmgrd_preferred_allocations_total.
const (
	followed  = "followed"  // the answer was used unchanged
	corrected = "corrected" // the answer did not match the request: its usable part was used
	slow      = "slow"      // no answer in time: devmgrd chose without it
	failed    = "failed"    // the plugin returned an error: likewise
)

// evaluate returns the result of an answer: followed or corrected.
func (q preferenceRequest) evaluate(answer []device.ID) string {
	sorted := slices.Sorted(slices.Values(answer))
	if len(slices.Compact(sorted)) != q.size || len(answer) != q.size {
		return corrected
	}
	for _, id := range sorted {
		if _, available := slices.BinarySearch(q.available, id); !available {
			return corrected
		}
	}
	for _, id := range q.must {
		if _, included := slices.BinarySearch(sorted, id); !included {
			return corrected
		}
	}
	return followed
}

// askPreference asks a plugin for its preference. A failure costs the preference, not the allocation. No lock is held.
func (a *Allocator) askPreference(ctx context.Context, pod device.Pod, q preferenceRequest) []device.ID {
	answer, err := a.plugins.Prefer(ctx, pod, q.container, q.resource, q.available, q.must, q.size)
	result := failed
	switch no := (*device.Refusal)(nil); {
	case err == nil:
		result = q.evaluate(answer)
	case errors.As(err, &no) && no.Reason == device.PluginSlow:
		result = slow
	}
	a.metrics.preferred.WithLabelValues(string(q.resource), result).Inc()
	if result != followed {
		a.log.Warn("cannot follow plugin's device preference", "resource", q.resource, "pod", pod.String(),
			"container", q.container.Name, "result", result, "wanted", q.size, "of", len(q.available), "got", len(answer), "err", err)
	}
	return answer
}
