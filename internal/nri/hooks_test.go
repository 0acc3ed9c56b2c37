package nri

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The watchdog learns of a hook that hangs, and forgets it when the hook ends after all. A slow hook does not count as hanging.
func TestHooks_HungHook_IsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, w := newPlugin(t)
		end := make(chan struct{})
		w.fetch = func(context.Context) error { // heedless of its context
			<-end
			return context.Canceled
		}
		answered := make(chan error)
		go func() {
			_, _, err := p.CreateContainer(t.Context(), sandbox(), container())
			answered <- err
		}()
		time.Sleep(hangLimit) // of the bubble's clock
		if err := p.hooks.check(); err != nil {
			t.Errorf("after %s: %v", hangLimit, err)
		}
		time.Sleep(time.Second)
		if err := p.hooks.check(); err == nil || !strings.Contains(err.Error(), "CreateContainer") {
			t.Errorf("after more than %s: %v, want that CreateContainer hangs", hangLimit, err)
		}
		// Others do not put it out of sight.
		if _, err := p.StopContainer(t.Context(), sandbox(), container()); err != nil {
			t.Error(err)
		}
		if p.hooks.check() == nil {
			t.Error("another hook has ended, and the one that hangs is forgotten")
		}
		close(end)
		if err := <-answered; err == nil {
			t.Error("the container passed")
		}
		if err := p.hooks.check(); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}
