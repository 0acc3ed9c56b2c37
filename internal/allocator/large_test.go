package allocator_test

import (
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The plugins' answers for one container may be too large together. None of them enters the state file, other pods may have
// the devices, and the pod starts when a plugin answers less.
func TestGrantsTooLargeTogether_Wait(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		pad := func(n int) {
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			r.plugins.padding = n
		}
		pad(device.MaxGrant/2 + 1)
		both := app(gpu, 1)
		both.Wants[nic] = 1
		r.bind("a", both)
		r.after(time.Second)
		r.expect("a", "main", "waiting PluginError")
		if w := r.Readiness(device.Container{Pod: "a", Name: "main"}).Wait.Message; !strings.Contains(w, "container main") || !strings.Contains(w, "vendor.com/") {
			t.Errorf("the pod waits with %q", w)
		}
		onDisk, err := podsOnDisk(r.store)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range onDisk {
			if len(p.Assignments) > 0 {
				t.Errorf("the state file has an assignment of %s", p.Demand.Pod)
			}
		}
		r.bind("b", app(gpu, 1)) // one of the answers is not too large
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Drop("b")
		pad(0)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0] vendor.com/nic[d0]")
	})
}

// A pod may have many containers, and all its grants are one record of the state file.
func TestGrantsOfAPodTooLargeTogether_Wait(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 20)
		r.RuntimeSynced(nil, nil)
		r.plugins.padding = device.MaxGrant - 500
		var all []device.Demand
		for i := range 20 {
			d := app(gpu, 1)
			d.Container.Name = string(rune('a' + i))
			all = append(all, d)
		}
		r.bind("p", all...) // and before the first pause has ended
		r.expect("p", "a", "waiting PluginError")
		if n := len(r.plugins.asked); n != device.MaxPodGrants/device.MaxGrant+1 {
			t.Errorf("the plugin was asked %d times", n)
		}
	})
}
