package allocator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A device that its plugin lists as healthy and refuses does not block a pod while others are free.
func TestRefusedDevice_IsChosenLast(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 8)
		r.RuntimeSynced(nil, nil)
		broken := "[d0"
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error {
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			if broken != "" && strings.Contains(r.plugins.asked[len(r.plugins.asked)-1], broken) {
				return errPlugin
			}
			return nil
		})
		for i := range 7 {
			name := fmt.Sprintf("%c", 'a'+i)
			r.bind(name, app(gpu, 1))
			r.after(2 * time.Second) // the first pause
			r.expect(name, "main", fmt.Sprintf("ready vendor.com/gpu[d%d]", i+1))
		}
		r.bind("h", app(gpu, 1)) // there is no other
		r.after(time.Hour)
		r.expect("h", "main", "waiting PluginError")
		r.plugins.mu.Lock()
		broken = ""
		r.plugins.mu.Unlock()
		r.after(time.Minute)
		r.expect("h", "main", "ready vendor.com/gpu[d0]")
		r.Drop("h")
		r.bind("i", app(gpu, 1)) // it is as good as any again
		r.expect("i", "main", "ready vendor.com/gpu[d0]")
	})
}

// A pod that requests several devices gets past a refused one, too, although the plugin does not name the device at fault.
func TestRefusedDevice_AmongSeveral_IsFoundOut(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error {
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			if strings.Contains(r.plugins.asked[len(r.plugins.asked)-1], "d0") {
				return errPlugin
			}
			return nil
		})
		r.bind("a", app(gpu, 2))
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1 d2]")
	})
}
