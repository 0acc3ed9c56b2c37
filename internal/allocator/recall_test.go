package allocator_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet is away, so a pod that was bound past the scheduler is neither admitted nor rejected while devmgrd restarts.
func TestNumber_UnadmittedPodInTheStateFile_DoesNotRaiseIt(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		all := pod("a", app(gpu, 2))
		all.Admitted = true
		r.Bind(all)
		c := running("1", "a", "main")
		c.Stamp = device.Choice{gpu: {"d0", "d1"}}
		r.RuntimeSynced(nil, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		r.Claim(c)
		r.bind("b", app(gpu, 1))
		r.after(5 * time.Second)
		r.published(numbers{gpu: 2})
		r.restart()
		r.Replace([]device.PodDemand{all, pod("b", app(gpu, 1))})
		r.RuntimeSynced([]device.Running{c}, nil)
		r.published(numbers{gpu: 2})
	})
}
