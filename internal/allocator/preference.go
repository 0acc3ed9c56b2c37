package allocator

import (
	"context"
	"errors"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A preferenceKey is what advice is about: one container's devices of one resource.
type preferenceKey struct {
	container string
	resource  device.ResourceName
}

// preferences is what plugins have said that they prefer, during one attempt. A topic that is there has been asked about,
// even if nothing came of it. nil: nobody is asked.
type preferences map[preferenceKey][]device.ID

// A preferenceRequest is what GetPreferredAllocation asks: which size devices of the available ones go well together, if these
// must be among them.
type preferenceRequest struct {
	container device.Container
	resource  device.ResourceName
	available []device.ID // ascending
	must      []device.ID // ascending
	size      int
}

func (q preferenceRequest) key() preferenceKey { return preferenceKey{q.container.Name, q.resource} }

// What has become of a question, in the metric devmgrd_preferred_allocations_total.
const (
	followed  = "followed"  // the answer was used as it was
	corrected = "corrected" // the answer was not what was asked for: what could be used of it was
	slow      = "slow"      // no answer in time: the choice was made without
	failed    = "failed"    // the plugin gave an error: likewise
)

// evaluate tells how good an answer is.
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

// applyPreference asks a plugin what it prefers. A plugin that fails to say costs its advice, not the allocation. No lock is held.
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
