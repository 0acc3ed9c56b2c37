package allocator_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func TestDevicesStayWhileAContainerLives(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.RuntimeInjected(running("1", "a", "main"))
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices") // the runtime has not listed its containers yet
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, nil)
		r.expect("b", "main", "waiting NotEnoughDevices") // force-deleted, and still running
		r.RuntimeLost()
		r.RuntimeStopped(running("1", "a", "main"))
		r.expect("b", "main", "waiting NotEnoughDevices") // the running containers are unknown
		r.RuntimeSynced(nil, nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// From RuntimeCreating's answer on, a container counts as running: its pod may end at any moment.
func TestAClaimKeepsTheDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		c := running("1", "a", "main")
		if st := r.RuntimeCreating(c); st.State != device.Ready {
			t.Fatalf("a stands %v", st)
		}
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeAborted(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeCreating(running("2", "c", "main")) // unknownUsers: nothing is claimed
		r.bind("c", app(gpu, 1))
		r.Drop("b")
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	})
}

// The state file is gone, and containers run with devices: their stamps keep other pods away until the containers have ended.
func TestStampsKeepDevicesThatTheBooksDoNotKnow(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		old := running("1", "old", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{old}, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.check()
		r.RuntimeSynced([]device.Running{old, running("2", "a", "main")}, nil)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(old)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// A pod that runs on after a loss of the state file is assigned the same devices again.
func TestStampsAreTakenUpAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		demands := func() []device.Demand {
			return []device.Demand{wants("init", device.Init, gpu, 2), wants("x", device.App, gpu, 2), wants("y", device.App, gpu, 1)}
		}
		var all []device.Running
		for name, ids := range map[string][]device.ID{"x": {"d2", "d1"}, "y": {"d3"}} {
			c := running("of-"+name, "a", name)
			c.Stamp = map[device.ResourceName][]device.ID{gpu: ids}
			all = append(all, c)
		}
		r.RuntimeSynced(all, nil)
		r.bind("a", demands()...)
		r.expect("a", "x", "ready vendor.com/gpu[d1 d2]")
		r.expect("a", "y", "ready vendor.com/gpu[d3]")
		r.check()
		r.RuntimeSynced(all, nil) // the state file knows them now
		r.check()
		r.Drop("a")
		for _, c := range all {
			r.RuntimeStopped(c)
		}
		r.check()
		r.bind("b", app(gpu, 4))
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1 d2 d3]")
	}, func(r *harness) { r.mute = true })
}

// The devices in a pod's stamps are held while its plugin is asked again, and set aside again if the plugin fails.
func TestStampsThatCannotBeTakenUp(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		var gate chan struct{}
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return errPlugin })
		old := running("1", "a", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		for _, ends := range []bool{false, true} { // the container runs on meanwhile, and then it does not
			gate = make(chan struct{})
			r.RuntimeSynced([]device.Running{old}, nil)
			r.bind("a", app(gpu, 1))
			r.after(10 * time.Second) // after the pause of the last failure
			r.bind("b", app(gpu, 1))
			r.expect("a", "main", "busy Allocating")
			if ends {
				r.RuntimeStopped(old)
			} else {
				r.RuntimeSynced([]device.Running{old}, nil)
			}
			r.expect("b", "main", "waiting NotEnoughDevices")
			if !ends {
				close(gate)
				r.expect("a", "main", "waiting PluginError")
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.check()
			}
		}
		r.plugins.answers(nil)
		close(gate)
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The runtime may report a stamp that the state file lacks while the pod is being served. No other pod gets the container's
// devices until it ends, whatever the attempt's result.
func TestStampsDuringAnAttempt(t *testing.T) {
	t.Parallel()
	stamp := func(id device.ID) device.Running {
		r := running("1", "a", "main")
		r.Stamp = map[device.ResourceName][]device.ID{gpu: {id}}
		return r
	}
	for name, test := range map[string]struct {
		stamp device.ID
		fails bool
		a     string
		b     int // the next pod's request
	}{
		"of what is held":                       {"d0", false, "ready vendor.com/gpu[d0]", 2},
		"of what is held, and the plugin fails": {"d0", true, "waiting PluginError", 2},
		"of another device":                     {"d1", false, "ready vendor.com/gpu[d0]", 1},
		"of another, and the plugin fails":      {"d1", true, "waiting PluginError", 2},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				gate := make(chan struct{})
				r.plugins.answers(func(_ context.Context, p device.Pod, _ device.ResourceName) error {
					<-gate
					if test.fails && p.Name == "a" {
						return errPlugin
					}
					return nil
				})
				r.bind("a", app(gpu, 1))
				r.expect("a", "main", "busy Allocating")
				r.RuntimeSynced([]device.Running{stamp(test.stamp)}, nil)
				close(gate)
				r.expect("a", "main", test.a)
				r.Drop("a")
				r.bind("b", app(gpu, test.b))
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.check()
				r.RuntimeStopped(stamp(test.stamp))
				// One device is free at once and one after a commit, so the one device that b gets may be either.
				if got := r.stands("b", "main"); got != "ready vendor.com/gpu[d0 d1]" && (test.b == 2 || !strings.HasPrefix(got, "ready vendor.com/gpu[d")) {
					t.Errorf("b has %q", got)
				}
			})
		})
	}
	t.Run("while the plugin thinks", func(t *testing.T) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 6)
			think := make(chan struct{})
			r.plugins.prefers(gpu, func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error) {
				<-think
				return last(ctx, available, must, size)
			})
			r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
			r.bind("a", app(gpu, 1), wants("two", device.App, gpu, 1), wants("three", device.App, gpu, 1))
			r.RuntimeSynced([]device.Running{stamp("d5")}, nil)
			for range 3 {
				r.expect("a", "main", "busy Allocating")
				r.check()
				select {
				case think <- struct{}{}:
				case <-time.After(time.Second): // it is not asked again about a container that has its devices
				}
			}
			r.expect("a", "main", "waiting PluginError")
			r.plugins.answers(nil)
			r.Drop("a")
			r.bind("b", app(gpu, 6))
			r.expect("b", "main", "waiting NotEnoughDevices")
			r.check()
			r.RuntimeStopped(stamp("d5"))
			r.expect("b", "main", "ready vendor.com/gpu[d0 d1 d2 d3 d4 d5]")
		})
	})
}

// A container that requests devices and has no stamp was created while nothing blocked it. It is reported once, whether the
// runtime or the API server reports first.
func TestBareContainers(t *testing.T) {
	t.Parallel()
	stamped := func(id, pod string) device.Running {
		r := running(id, pod, "main")
		r.Stamp = map[device.ResourceName][]device.ID{gpu: {map[string]device.ID{"good": "d0", "early": "d1"}[pod]}}
		return r
	}
	imported := func(r *harness, at time.Time) {
		r.halt()
		books, err := store.Open(store.Config{Dir: r.dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		err = books.SaveAll([]device.PodRecord{{Demand: pod("imported", app(gpu, 1)), Assignments: []device.Assignment{{
			Container: device.Container{Pod: "imported", Name: "main"}, Imported: at, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{"d3"}}},
		}}}}, nil)
		if err := errors.Join(err, books.Close()); err != nil {
			t.Fatal(err)
		}
		r.start()
	}
	made := func(r device.Running, at time.Time) device.Running {
		r.Made = at
		return r
	}
	run(t, func(r *harness) {
		imported(r, born)
		r.plugins.stock(gpu, 4)
		all := []device.Running{
			stamped("1", "good"), running("2", "early", "main"), running("3", "plain", "main"), running("4", "late", "main"),
			running("5", "early", "sidekick"), made(running("6", "imported", "main"), born.Add(-time.Hour)),
		}
		for _, name := range []string{"good", "early", "imported"} {
			r.Bind(pod(name, app(gpu, 1)))
		}
		r.RuntimeSynced(all, nil)
		synctest.Wait()
		r.Bind(pod("plain"))
		r.Bind(pod("late", app(gpu, 1)))
		r.RuntimeLost()
		r.RuntimeSynced(all, nil)
		r.Bind(pod("late", app(gpu, 1)))
		// The container restarts, and gets its devices.
		r.RuntimeStopped(running("2", "early", "main"))
		r.expect("early", "main", "ready vendor.com/gpu[d1]")
		r.RuntimeCreating(running("7", "early", "main"))
		r.RuntimeInjected(running("7", "early", "main"))
		r.Bind(pod("early", app(gpu, 1)))
		// A container that the kubelet created before the import has its devices; a later one without a stamp does not.
		all[1] = stamped("7", "early")
		r.RuntimeSynced(append(all, made(running("8", "imported", "main"), born.Add(time.Hour))), nil)
		synctest.Wait()
		var bare []string
		for _, told := range r.plugins.told {
			if strings.HasSuffix(told, " is bare") {
				bare = append(bare, told)
			}
		}
		if want := []string{"early/main is bare", "late/main is bare", "imported/main is bare"}; !slices.Equal(bare, want) {
			t.Errorf("told %q, want %q", bare, want)
		}
		if n := r.metric("devmgrd_started_without_devices_total"); n != float64(len(bare)) {
			t.Errorf("counted %v", n)
		}
	}, func(r *harness) { r.mute = true }) // no pod is planned before the runtime's list: otherwise good and early would race for d0
}

// Whatever the state file contains, the runtime reports first: the file may be lost or outdated.
func TestNothingIsGivenOutBeforeTheRuntimeHasTold(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "busy Allocating")
		old := running("1", "old", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{old}, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.RuntimeLost()
		r.bind("b")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.restart()
		r.expect("a", "main", "ready vendor.com/gpu[d1]") // that is no gift
		r.bind("d", app(gpu, 1))
		r.expect("c", "main", "busy Allocating")
		r.RuntimeSynced([]device.Running{old}, nil)
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(old)
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// Devices in use without a record stay unavailable until their container has ended, and they are counted.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		states := func(free, assigned, quarantined float64) {
			t.Helper()
			r.check()
			for state, want := range map[string]float64{"free": free, "assigned": assigned, "quarantined": quarantined} {
				if n := r.metric("devmgrd_devices", string(gpu), state); n != want {
					t.Errorf("%v devices are %s, want %v", n, state, want)
				}
			}
		}
		one, two := running("1", "old", "one"), running("2", "old", "two")
		one.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}, "vendor.com/unheard-of": {"x"}}
		two.Stamp = map[device.ResourceName][]device.ID{gpu: {"d2"}}
		all := []device.Running{one, two}
		r.RuntimeSynced(all, nil)
		r.Replace(nil) // the API server does not know the pod
		states(1, 0, 2)
		r.published(map[device.ResourceName]int{gpu: 3}) // as with all that is in use
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting NotEnoughDevices")
		for range 2 { // a reconcile, and a restart, change nothing
			r.RuntimeLost()
			r.RuntimeSynced(all, nil)
			states(0, 1, 2)
			r.restart()
			r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
			r.RuntimeSynced(all, nil)
			states(0, 1, 2)
		}
		r.RuntimeStopped(one)
		states(0, 1, 2) // its pod still has a container
		r.RuntimeStopped(two)
		states(1, 2, 0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// A container runs with a device that the state file assigns to another pod. After that pod no pod gets the device while the
// container runs.
func TestADisputedDevice(t *testing.T) {
	t.Parallel()
	old := running("1", "old", "main")
	old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
	free := func(r *harness) {
		r.t.Helper()
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.check()
		if n := r.metric("devmgrd_devices", string(gpu), "quarantined"); n != 1 {
			r.t.Errorf("%v devices are set aside, want 1", n)
		}
		r.RuntimeStopped(old)
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	}
	t.Run("assigned", func(t *testing.T) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			r.bind("b", app(gpu, 1))
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
			r.bind("c", app(gpu, 1))
			r.RuntimeSynced([]device.Running{old}, nil)
			r.RuntimeSynced([]device.Running{old}, nil)
			disputed := func(want float64) {
				t.Helper()
				r.check()
				if n := r.metric("devmgrd_devices_disputed", string(gpu)); n != want {
					t.Errorf("%v devices are in dispute, want %v", n, want)
				}
			}
			disputed(1)
			r.Drop("b")
			free(r)
			disputed(0)
		})
	})
	t.Run("held", func(t *testing.T) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			gate := make(chan struct{})
			r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return errPlugin })
			r.bind("b", app(gpu, 1))
			r.expect("b", "main", "busy Allocating")
			r.RuntimeSynced([]device.Running{old}, nil)
			r.Drop("b")
			r.bind("c", app(gpu, 1))
			r.plugins.answers(nil)
			close(gate)
			free(r)
		})
	})
	t.Run("set aside", func(t *testing.T) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			first := old
			first.ID, first.Container.Pod = "0", "older"
			r.RuntimeSynced([]device.Running{first, old}, nil)
			r.bind("c", app(gpu, 1))
			r.RuntimeStopped(first)
			free(r)
		})
	})
}

// A restarted runtime does not report the end of earlier sandboxes. A static pod that has had no container for idleLimit
// loses its devices, and gets some again if it returns.
func TestALocalPodWhoseEndIsNotTold(t *testing.T) {
	t.Parallel()
	local := pod("a", app(gpu, 1))
	local.Local = true
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, []device.PodDemand{local})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.after(time.Hour)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		for range 5 { // it fails again and again, and the kubelet waits five minutes and more each time
			r.RuntimeStopped(running("1", "a", "main"))
			r.after(7 * time.Minute)
			r.Bind(local)
			r.RuntimeCreating(running("1", "a", "main"))
			r.after(20 * time.Minute)
		}
		r.bind("b", app(gpu, 1))
		r.RuntimeStopped(running("1", "a", "main"))
		r.RuntimeLost()
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices") // unknown
		r.RuntimeSynced(nil, []device.PodDemand{local})
		r.after(9 * time.Minute)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.after(2 * time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
		r.Bind(local) // its container is made again
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.Drop("b")
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// A manifest that names the pod's UID is changed, and the pod's next container requests more than the pod has.
func TestStaticPod_SameUIDRequestsMore_WaitsUntilItIsPutBack(t *testing.T) {
	t.Parallel()
	for name, now := range map[string]device.Demand{
		"devices": app(gpu, 2), "another resource": {Container: device.Container{Name: "main"}, Wants: map[device.ResourceName]int{gpu: 1, nic: 1}},
		"another container": wants("other", device.App, gpu, 2),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				r.plugins.stock(nic, 1)
				r.RuntimeSynced(nil, nil)
				static := pod("a", app(gpu, 1))
				static.Local = true
				r.Bind(static)
				r.expect("a", "main", "ready vendor.com/gpu[d0]")
				changed := pod("a", now)
				changed.Local = true
				r.Bind(changed)
				c := now.Container.Name
				r.expect("a", c, "waiting DevicesUnknown")
				if st := r.Readiness(device.Container{Pod: "a", Name: c}); !strings.Contains(st.Wait.Message, "annotation has changed") {
					t.Errorf("it says %q", st.Wait.Message)
				}
				r.DropLocal("a")
				r.after(time.Minute)
				r.Bind(changed)
				r.after(time.Second)
				if got := r.stands("a", c); !strings.HasPrefix(got, "ready") {
					t.Errorf("put back, it stands %q", got)
				}
				r.check()
			})
		})
	}
}

// The scheduler knows a static pod's devices only by its mirror pod: the Node does not show the others.
func TestTheNumberWithLocalPods(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.published(map[device.ResourceName]int{gpu: 3})
		static := pod("a", app(gpu, 1))
		static.Local = true
		r.Bind(static)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.published(map[device.ResourceName]int{gpu: 2})
		r.bind("b", app(gpu, 2))
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.published(map[device.ResourceName]int{gpu: 2})
		for name, n := range map[string]int{"b": 2, "c": 1} {
			admitted := pod(name, app(gpu, n))
			admitted.Admitted = true
			r.Bind(admitted)
		}
		r.published(map[device.ResourceName]int{gpu: 3}) // as many as they ask for
		r.Drop("c")
		r.published(map[device.ResourceName]int{gpu: 2})

		mirror := pod("m", app(gpu, 1))
		mirror.Pod.Name, mirror.Mirror = "a", true
		r.Bind(mirror)
		r.Bind(mirror)
		r.published(map[device.ResourceName]int{gpu: 3})
		r.check()
		r.restart()
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.published(map[device.ResourceName]int{gpu: 2})
		r.Replace([]device.PodDemand{pod("b", app(gpu, 2)), mirror})
		r.RuntimeSynced(nil, []device.PodDemand{static})
		r.published(map[device.ResourceName]int{gpu: 3})
		r.check()
		r.Drop("m")
		r.published(map[device.ResourceName]int{gpu: 2})
		r.Bind(mirror)
		r.Replace([]device.PodDemand{pod("b", app(gpu, 2))})
		r.published(map[device.ResourceName]int{gpu: 2})
		r.DropLocal("a")
		r.after(time.Minute)
		r.published(map[device.ResourceName]int{gpu: 3})
	})
}

// A node may gain or lose an API server: pods known from one source are then known from the other, or gone.
func TestAnotherMode(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		local := pod("a", app(gpu, 1))
		local.Local = true
		r.Replace(nil) // the API server is gone
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, []device.PodDemand{local})
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.check()
		r.Replace(nil)
		r.RuntimeStopped(running("1", "a", "main"))
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1))}) // there is one again
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.Replace(nil)
		r.RuntimeSynced(nil, nil)
		r.bind("b", app(gpu, 2))
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
	})
}

// The runtime alone reports static pods: a list of the API server does not affect them. After the end of their sandbox they
// keep their devices for a moment, since they may get another.
func TestLocalPods(t *testing.T) {
	t.Parallel()
	local := func(name string) device.PodDemand {
		d := pod(name, app(gpu, 1))
		d.Local, d.Created = true, time.Time{}
		return d
	}
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.Bind(local("a"))
		r.Bind(local("a"))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.Replace(nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.bind("a", app(gpu, 2)) // a pod in the API that pretends to be the mirror pod
		r.Drop("a")
		r.Replace([]device.PodDemand{pod("a")})
		r.Replace(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")

		r.DropLocal("a")
		r.bind("b", app(gpu, 1))
		r.after(9 * time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.Bind(local("a")) // in another sandbox
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeSynced(nil, []device.PodDemand{local("a")})
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")

		r.DropLocal("a")
		r.after(11 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Drop("b")
		r.Bind(local("c"))
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.RuntimeSynced(nil, nil) // it ended while devmgrd was away
		r.bind("d", app(gpu, 1))
		r.after(time.Minute)
		r.expect("d", "main", "ready vendor.com/gpu[d0]")
	})
}
