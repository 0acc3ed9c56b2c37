package allocator_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet is away, so a pod that was bound past the scheduler is neither admitted nor rejected while devmgrd restarts.
func TestNumber_UnadmittedPodInTheStateFile_DoesNotRaiseIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		all := pod("a", app(gpu, 2))
		all.Admitted = true
		r.Bind(all)
		c := running("1", "a", "main")
		c.Stamp = device.Choice{gpu: {"d0", "d1"}}
		r.RuntimeSynced(nil, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		r.RuntimeCreating(c)
		r.bind("b", app(gpu, 1))
		r.after(5 * time.Second)
		r.published(numbers{gpu: 2})
		r.restart()
		r.Replace([]device.PodDemand{all, pod("b", app(gpu, 1))})
		r.RuntimeSynced([]device.Running{c}, nil)
		r.published(numbers{gpu: 2})
	})
}

// Pods in the state file may be gone: their requests raise no capacity before the API server has listed the pods.
func TestNumber_PodsOfTheStateFileAreGone_DoNotRaiseIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		var all []device.PodDemand
		for _, name := range []string{"a", "b", "c"} {
			p := pod(name, app(gpu, 2))
			p.Admitted = true
			all = append(all, p)
		}
		r.Bind(all[0])
		r.Bind(all[1])
		r.after(time.Second)
		r.halt()
		r.boot = "two"
		r.start()
		r.plugins.lists(gpu, "n0", "n1", "n2", "n3") // the devices of the two pods are of another boot, and no longer listed
		r.published(numbers{gpu: 4})
		r.Replace([]device.PodDemand{all[2]})
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		r.expect("c", "main", "ready vendor.com/gpu[n0 n1]")
		r.published(numbers{gpu: 4})
	}, func(r *harness) { r.boot = "one" })
}
