package allocator_test

import (
	"context"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Another instance of a plugin may register while the previous stream is open: the offer is never away, and still the pauses
// of pods that the old instance failed end.
func TestPluginReplacedWithoutAGap_EndsPauses(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.after(10 * time.Minute) // its pauses are 30 s by now
		for r.asked(); len(r.asked()) == 0; {
			r.after(time.Second) // just after a try
		}
		r.plugins.answers(nil)
		r.plugins.offer(gpu, func(o *device.Offer) { o.Session++ })
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}
