package allocator_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestPreStartRunsBeforeEachStart(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		r.shop.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		gate := make(chan struct{})
		r.shop.prepares(func(context.Context) error { <-gate; return nil })
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "busy Preparing")
		close(gate)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeStarted(running("1", "a", "main"))
		synctest.Wait()
		if n := len(r.shop.prepared); n != 1 {
			t.Fatalf("prepared %d times before the first start, want once", n)
		}
		r.RuntimeStopped(running("1", "a", "main"))
		synctest.Wait()
		if n := len(r.shop.prepared); n != 2 {
			t.Fatalf("prepared %d times after the first stop, want twice", n)
		}
		// The next instance starts before the end of the last one is told: its devices are not touched then.
		r.RuntimeStarted(running("2", "a", "main"))
		r.RuntimeStarted(running("3", "a", "main"))
		r.RuntimeStopped(running("2", "a", "main"))
		synctest.Wait()
		if n := len(r.shop.prepared); n != 2 {
			t.Errorf("prepared %d times while an instance runs, want twice", n)
		}
		r.restart()
		r.expect("a", "main", "busy Preparing") // asking has it prepared
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		if n := len(r.shop.prepared); n != 3 {
			t.Errorf("prepared %d times after a restart, want 3", n)
		}
	})
}

func TestAFailedPreStartIsARefusalAndIsTriedAgain(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.shop.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.shop.prepares(func(context.Context) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PreStartFailed")
		r.shop.prepares(nil)
		r.expect("a", "main", "waiting PreStartFailed")
		r.after(time.Second)
		r.expect("a", "main", "busy Preparing")
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}
