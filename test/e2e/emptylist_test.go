//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Many plugins list nothing at their start, and all of their devices a moment later. The Node's number does not move, and
// no device counts as failed.
func TestPlugin_FirstListIsEmpty_NothingMovesAndNothingFails(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	r.run("a", gpu, 2)
	stays := r.followPod("a")
	numbers := r.watchNumbers(gpu)
	all := p.Listed()
	for range 3 {
		p.Stop()
		r.until("the plugin is away", func() bool { return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 0 })
		p.Set()
		p.Serve()
		p.MustRegister()
		r.until("devmgrd has the empty list", func() bool {
			return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 1 && r.inState(gpu, "free")+r.inState(gpu, "stale") == 0
		})
		<-time.After(time.Second) // the plugin takes that long
		p.Set(all...)
		r.until("devmgrd has all devices", func() bool { return r.inState(gpu, "free") == 2 })
	}
	r.run("b", gpu, 2)
	stays()
	for _, n := range numbers() {
		if n != 4 {
			t.Errorf("the Node showed %d meanwhile, want 4 all the time", n)
		}
	}
	if n := r.metric(fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)); n != 0 {
		t.Errorf("%v failures are counted", n)
	}
	if events := r.Events(r.ctx, "a"); strings.Contains(events, "DeviceFailed") {
		t.Errorf("a failure was reported: %s", events)
	}

	// A device that stays away has failed.
	p.Set(all[2:]...)
	r.told("a", "DeviceFailed")
	r.until("two failures are counted", func() bool { return r.metric(fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)) == 2 })
}
