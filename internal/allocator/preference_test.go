package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// last prefers the devices with the highest IDs.
func last(_ context.Context, available, must []device.ID, size int) ([]device.ID, error) {
	answer := slices.Clone(must)
	for i := len(available) - 1; len(answer) < size; i-- {
		if !slices.Contains(answer, available[i]) {
			answer = append(answer, available[i])
		}
	}
	return answer, nil
}

func TestAPluginIsAskedWhatItPrefers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.plugins.prefers(gpu, last)
		r.bind("a", wants("init", device.Init, gpu, 1), app(gpu, 2))
		r.expect("a", "init", "ready vendor.com/gpu[d3]")
		r.expect("a", "main", "ready vendor.com/gpu[d2 d3]")
		r.bind("b", app(gpu, 2)) // no choice: no plugin is asked
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
		if want := []string{
			"a/init vendor.com/gpu 1 of [d0 d1 d2 d3] with []",
			"a/main vendor.com/gpu 2 of [d0 d1 d2 d3] with [d3]",
		}; !slices.Equal(r.plugins.advised, want) {
			t.Errorf("asked %q, want %q", r.plugins.advised, want)
		}
		if n := r.metric("devmgrd_preferred_allocations_total", string(gpu), "followed"); n != 2 {
			t.Errorf("%v answers were followed, want 2", n)
		}
		if n := len(r.plugins.asked); n != 3 {
			t.Errorf("%d calls of Allocate, want one for each container: %q", n, r.plugins.asked)
		}
	})
}

// An unusable preference is ignored and counted.
func TestAdviceThatCannotBeFollowed(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		prefer func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error)
		counts string
		gets   string
	}{
		"too few": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return []device.ID{"d3"}, nil
		}, "corrected", "[d0 d3]"},
		"unknown": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return []device.ID{"d2", "x"}, nil
		}, "corrected", "[d0 d2]"},
		"doubles": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return []device.ID{"d2", "d2"}, nil
		}, "corrected", "[d0 d2]"},
		"nothing": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) { return nil, nil }, "corrected", "[d0 d1]"},
		"an error": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return nil, errors.New("no")
		}, "failed", "[d0 d1]"},
		"slow": {func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return nil, device.Refuse(device.PluginSlow, nil, "no answer")
		}, "slow", "[d0 d1]"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 4)
				r.plugins.prefers(gpu, test.prefer)
				r.bind("a", app(gpu, 2))
				r.expect("a", "main", "ready vendor.com/gpu"+test.gets)
				if n := r.metric("devmgrd_preferred_allocations_total", string(gpu), test.counts); n != 1 {
					t.Errorf("%v answers counted as %s, want 1", n, test.counts)
				}
			})
		})
	}
}

// While a plugin answers, the pod holds a full choice: a younger pod does not get ahead of it.
func TestWhileAPluginThinks(t *testing.T) {
	t.Parallel()
	type step func(r *harness)
	for name, test := range map[string]struct {
		meanwhile step
		then      step
	}{
		"a younger pod asks for all": {
			func(r *harness) {
				r.bind("b", app(gpu, 4))
				r.expect("b", "main", "waiting NotEnoughDevices")
			},
			func(r *harness) { r.expect("a", "main", "ready vendor.com/gpu[d3 d4]") },
		},
		"another pod goes": {
			func(r *harness) { r.Drop("0") },
			func(r *harness) { r.expect("a", "main", "ready vendor.com/gpu[d3 d4]") },
		},
		"a device that it will prefer fails": {
			func(r *harness) { r.plugins.stock(gpu, 5, 3) },
			func(r *harness) { r.expect("a", "main", "ready vendor.com/gpu[d1 d4]") },
		},
		"too many fail": {
			func(r *harness) { r.plugins.stock(gpu, 5, 1, 2, 3) },
			func(r *harness) { r.expect("a", "main", "waiting DeviceUnhealthy") },
		},
		"the pod goes": {
			func(r *harness) { r.Drop("a") },
			func(r *harness) {
				r.expect("a", "main", "unknown")
				r.bind("c", app(gpu, 4))
				r.expect("c", "main", "ready vendor.com/gpu[d1 d2 d3 d4]")
			},
		},
		"its demand changes": {
			func(r *harness) { r.bind("a", app(gpu, 1)) },
			func(r *harness) { r.expect("a", "main", "ready vendor.com/gpu[d3]") },
		},
		"its demand changes, and back": {
			func(r *harness) { r.bind("a", app(gpu, 1)); r.bind("a", app(gpu, 2)) },
			func(r *harness) { r.expect("a", "main", "ready vendor.com/gpu[d3 d4]") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.RuntimeSynced(nil, nil)
				r.plugins.stock(gpu, 5)
				r.bind("0", app(gpu, 1))
				r.expect("0", "main", "ready vendor.com/gpu[d0]")
				think := make(chan struct{})
				r.plugins.prefers(gpu, func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error) {
					<-think
					return []device.ID{"d3", "d4"}[:size], nil
				})
				r.bind("a", app(gpu, 2))
				r.expect("a", "main", "busy Allocating")
				test.meanwhile(r)
				r.after(0)
				close(think)
				test.then(r)
			})
		})
	}
}

// A plugin's preference for one container may leave another one without devices. The preference yields, and the pod is
// served.
func TestAdviceThatStandsInTheWay(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		near := func(res device.ResourceName, nodes ...int) {
			r.plugins.offer(res, func(o *device.Offer) {
				o.Reported, o.State = true, device.Serving
				for i, node := range nodes {
					o.Inventory.Devices = append(o.Inventory.Devices, device.Device{ID: device.ID(fmt.Sprintf("d%d", i)), Healthy: true, NUMA: []int{node}})
				}
			})
		}
		near(gpu, 0, 0, 1, 1)
		near(nic, 1)
		r.plugins.prefers(gpu, last)
		r.bind("a", app(gpu, 3), device.Demand{
			Container: device.Container{Name: "two"}, Kind: device.App, Wants: map[device.ResourceName]int{gpu: 1, nic: 1},
		})
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1 d2]")
		r.expect("a", "two", "ready vendor.com/gpu[d3] vendor.com/nic[d0]")
		if n := r.metric("devmgrd_preferred_allocations_total", string(gpu), "followed"); n != 1 {
			t.Errorf("%v answers were as they should be, want 1", n)
		}
	}, func(r *harness) { r.topology = allocator.Topology{Policy: placement.Restricted} })
}

// Placement works in the allocator as a whole: a release ends the wait for a better place.
func TestAMismatchEndsWhenDevicesAreGivenBack(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 4)
		r.plugins.places(gpu, 2) // even ones near node 0, odd ones near node 1
		r.after(0)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 2))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1 d3]")
		r.Drop("b")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "ready vendor.com/gpu[d2]")
		r.bind("d", app(gpu, 1))
		r.bind("e", app(gpu, 2))
		r.expect("e", "main", "waiting NotEnoughDevices")
		r.Drop("a")
		r.expect("e", "main", "waiting TopologyMismatch")
		r.Drop("c")
		r.expect("e", "main", "ready vendor.com/gpu[d0 d2]")
	}, func(r *harness) { r.topology = allocator.Topology{Policy: placement.SingleNUMA} })
}

// A device that a pod only held, while its plugin was asked for a preference, has not been used.
func TestOldest_HoldGivenUp_IsNoUse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.plugins.prefers(gpu, func(context.Context, []device.ID, []device.ID, int) ([]device.ID, error) {
			return nil, errors.New("no")
		})
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	}, func(r *harness) {
		r.ordering = func(device.ResourceName) allocator.Ordering { return allocator.Ordering{Order: "oldest"} }
	})
}
