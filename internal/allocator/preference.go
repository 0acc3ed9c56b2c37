package allocator

import (
	"context"
	"errors"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// Results of preference requests, in the metric devmgrd_preferred_allocations_total.
const (
	followed  = "followed"  // the answer was used unchanged
	corrected = "corrected" // the answer did not match the request: its usable part was used
	slow      = "slow"      // no answer in time: devmgrd chose without it
	failed    = "failed"    // the plugin returned an error: likewise
)

// askPreference asks a plugin for its preference. A failure costs the preference, not the allocation. No lock is held.
func (a *Allocator) askPreference(ctx context.Context, pod device.Pod, q placement.PreferenceRequest) []device.ID {
	answer, err := a.cfg.Plugins.Prefer(ctx, pod, q.Container, q.Resource, q.Available, q.Must, q.Size)
	result := failed
	switch no := (*device.Refusal)(nil); {
	case err == nil && q.Valid(answer):
		result = followed
	case err == nil:
		result = corrected
	case errors.As(err, &no) && no.Reason == device.PluginSlow:
		result = slow
	}
	a.metrics.preferred.WithLabelValues(string(q.Resource), result).Inc()
	if result != followed {
		a.cfg.Log.Warn("cannot follow plugin's device preference", "resource", q.Resource, "pod", pod.String(),
			"container", q.Container.Name, "result", result, "wanted", q.Size, "of", len(q.Available), "got", len(answer), "err", err)
	}
	return answer
}
