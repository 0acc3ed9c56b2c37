package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// kubelet has the kubelet say what its device manager has assigned, by pod and container, and its checkpoint too. It knows no other pods.
func (r *harness) kubelet(assigned map[string]map[string]device.Choice) {
	all := &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{}, Word: map[string]map[string]device.Choice{}, Asked: true}
	for name, containers := range assigned {
		all.Pods[device.PodUID(name)], all.Word[pod(name).Pod.String()] = containers, containers
	}
	r.kubelets.Store(all)
	r.KubeletChanged()
}

// checkpoint has only the checkpoint name what has been assigned to pod a. word is what the kubelet says.
func (r *harness) checkpoint(containers map[string]device.Choice, word map[string]map[string]device.Choice) {
	r.kubelets.Store(&device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": containers}, Word: word, Asked: true})
	r.KubeletChanged()
}

// has is one container with devices of gpu by the kubelet.
func has(pod, container string, ids ...device.ID) map[string]map[string]device.Choice {
	return map[string]map[string]device.Choice{pod: {container: {gpu: ids}}}
}

// ignoredUntilNow has pod a assigned a device of nic while gpu is ignored, and starts devmgrd with so many of gpu. said is called before that.
func (r *harness) ignoredUntilNow(devices int, said func()) {
	r.t.Helper()
	r.plugins.stock(nic, 1)
	r.RuntimeSynced(nil, nil)
	r.bind("a", wants("side", device.App, nic, 1))
	r.expect("a", "side", "ready vendor.com/nic[d0]")
	r.halt()
	r.plugins.stock(gpu, devices)
	said()
	r.start()
}

// withBoth is pod a with what has been ignored.
func withBoth() device.PodDemand { return pod("a", wants("side", device.App, nic, 1), app(gpu, 1)) }

// A resource is ignored no longer. The kubelet has the pod's next containers get the same device, also while devmgrd is away.
func TestKubelet_ResourceIsNoLongerIgnored_StaysWithTheKubelet(t *testing.T) {
	t.Parallel()
	both := wants("side", device.App, nic, 1)
	both.Wants[gpu] = 1
	for name, now := range map[string][]device.Demand{
		"in another container": {wants("side", device.App, nic, 1), app(gpu, 1)},
		"in one container":     {both},
	} {
		for _, runs := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, runs %v", name, runs), func(t *testing.T) {
				run(t, func(r *harness) {
					r.plugins.stock(nic, 1)
					r.RuntimeSynced(nil, nil)
					r.bind("a", wants("side", device.App, nic, 1))
					r.expect("a", "side", "ready vendor.com/nic[d0]")
					r.halt()
					r.plugins.stock(gpu, 2)
					c := said("1", "a", now[len(now)-1].Container.Name, "d0")
					r.kubelet(has("a", c.Container.Name, "d0"))
					r.start()
					var all []device.Running
					if runs {
						all = append(all, c)
					}
					r.RuntimeSynced(all, nil)
					bound := []device.PodDemand{pod("a", now...), pod("b", app(gpu, 1))}
					r.Replace(bound)
					stands := func(requests int) {
						t.Helper()
						r.expect("a", "side", "ready vendor.com/nic[d0]")
						r.expect("b", "main", "waiting DevicesUnknown")
						r.published(map[device.ResourceName]int{gpu: 2, nic: 1})
						if n := r.Resources().Requested()[gpu]; n != requests {
							t.Errorf("the scheduler counts %d requests, and here are %d", requests, n)
						}
						r.check()
					}
					stands(2)
					r.RuntimeStopped(c)
					stands(2)
					r.restart()
					r.RuntimeSynced(nil, nil)
					stands(1) // before the API server has listed the pods
					r.Replace(bound)
					stands(2)
					next := running("2", "a", c.Container.Name)
					r.RuntimeCreating(next)
					r.RuntimeInjected(next)
					if err := r.RuntimeStarting(context.Background(), next); err != nil {
						t.Error(err)
					}
					r.Drop("a")
					r.kubelet(nil) // it forgets a pod when that is deleted
					r.after(time.Minute)
					r.expect("b", "main", "waiting DevicesUnknown")
					r.RuntimeStopped(next)
					r.after(time.Minute)
					r.expect("b", "main", "ready vendor.com/gpu[d0]")
					r.check()
				}, func(r *harness) { r.mute = true })
			})
		}
	}
}

// A kubelet has started without its checkpoint: the pod's next container gets nothing from it, and the one that runs has its device.
func TestKubelet_HasForgottenAPod_NextContainerWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ignoredUntilNow(1, func() { r.kubelet(has("a", "main", "d0")) })
		r.Replace([]device.PodDemand{withBoth(), pod("b", app(gpu, 1))})
		c := running("1", "a", "main")
		r.RuntimeSynced([]device.Running{c}, nil)
		r.kubelet(nil)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.RuntimeStopped(c)
		r.expect("a", "main", "waiting DevicesUnknown")
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// Neither the kubelet nor devmgrd has assigned what a container requests: its pod was assigned devices while the resource was ignored.
func TestKubelet_ResourceIsNoLongerIgnored_ContainerWithoutItWaits(t *testing.T) {
	t.Parallel()
	both := wants("side", device.App, nic, 1)
	both.Wants[gpu] = 1
	run(t, func(r *harness) {
		r.plugins.stock(nic, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("side", device.App, nic, 1))
		r.bind("b", wants("side", device.App, nic, 1))
		r.halt()
		r.plugins.stock(gpu, 2)
		r.start()
		r.Replace([]device.PodDemand{pod("a", both), pod("b", wants("side", device.App, nic, 1), app(gpu, 1))})
		c := running("1", "a", "side")
		r.RuntimeSynced([]device.Running{c}, nil)
		r.expect("a", "side", "ready vendor.com/nic[d0]") // it runs
		r.wouldRefuse("a", "", "")
		r.RuntimeStopped(c)
		r.expect("a", "side", "waiting DevicesUnknown")
		r.wouldRefuse("a", "side", device.DevicesUnknown)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.wouldRefuse("b", "main", device.DevicesUnknown)
		r.expect("b", "side", "ready vendor.com/nic[d1]")
	}, func(r *harness) { r.mute = true })
}

// A pod is admitted while its plugin is still with the kubelet, and waits for devmgrd's hook until the plugin has come.
func TestKubelet_AssignsBeforeThePluginComes_PodHasThatDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.checkpoint(map[string]device.Choice{"main": {gpu: {"d1"}}}, map[string]map[string]device.Choice{})
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "waiting DevicesUnknown")
		r.kubelet(has("a", "main", "d1"))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting DevicesUnknown")
		r.bind("c", claims(app(gpu, 1), "claim", "d0"))
		r.expect("c", "main", "waiting DevicesUnknown")
		r.Drop("c")
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.kubelet(nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// devmgrd has assigned a pod what it had by the kubelet. Once the kubelet has started without its checkpoint, others get theirs.
func TestKubelet_HasForgottenAPodWithDevicesByDevmgrd_OthersGetTheirs(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.kubelet(has("a", "main", "d1"))
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d1")}, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting DevicesUnknown")
		r.kubelet(nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// A container that runs has its devices, as the runtime's list and the checkpoint say, before the kubelet has answered.
func TestKubelet_HasNotAnswered_RunningContainerIsAssignedItsDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.checkpoint(map[string]device.Choice{"main": {gpu: {"d1"}}}, map[string]map[string]device.Choice{})
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d1")}, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting DevicesUnknown")
	}, func(r *harness) { r.mute = true })
}

// A pod with a device by the kubelet gets no other one, though none of its containers has run since the boot.
func TestKubelet_PluginFailsAfterTheBoot_PodGetsNoOtherDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.kubelet(has("a", "main", "d1"))
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		refused, _ := r.refusing("d1")
		r.boot = "another"
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1))})
		r.after(10 * time.Minute)
		r.expect("a", "main", "waiting PluginError")
		refused.Store(false)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
	}, func(r *harness) { r.mute, r.boot = true, "boot" })
}

// Before the kubelet's first answer nothing is assigned, since its checkpoint may have been removed. The kubelet may start after devmgrd, though.
func TestKubelet_FirstAnswer_IsAwaited(t *testing.T) {
	t.Parallel()
	for _, answers := range []bool{true, false} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 2)
			r.kubelets.Store(&device.Kubelets{Asked: true})
			r.restart()
			r.RuntimeSynced(nil, nil)
			r.bind("a", app(gpu, 1))
			r.expect("a", "main", "busy Allocating")
			if answers {
				r.kubelet(nil)
			} else {
				r.after(6 * time.Second)
			}
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
		}, func(r *harness) { r.mute = true })
	}
}

// Others can write the checkpoint: no pod gets a device that it alone names. Where the kubelet knows the pod and names none, devmgrd assigns one.
func TestKubelet_DoesNotSaySo_PodWaits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		word  map[string]map[string]device.Choice
		waits bool
	}{
		"no pod":            {map[string]map[string]device.Choice{}, true}, // a kubelet that has just started
		"other devices":     {has("ns/a", "main", "d0"), true},
		"another container": {has("ns/a", "side", "d1"), true},
		"another pod":       {has("ns/b", "main", "d1"), true},
		"nothing":           {map[string]map[string]device.Choice{"ns/a": {}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				r.checkpoint(map[string]device.Choice{"main": {gpu: {"d1"}}}, test.word)
				r.RuntimeSynced(nil, nil)
				r.bind("a", app(gpu, 1))
				if test.waits {
					r.expect("a", "main", "waiting DevicesUnknown")
					r.kubelet(nil)
				}
				r.expect("a", "main", "ready vendor.com/gpu[d0]")
			}, func(r *harness) { r.mute = true })
		})
	}
}

// The kubelet says nothing of init containers. Theirs are no other pod's, also where they have more than the containers that follow, or these have none.
func TestKubelet_InitContainerHasADevice_IsNotAnothers(t *testing.T) {
	t.Parallel()
	first, both := wants("first", device.Init, gpu, 1), wants("first", device.Init, gpu, 2)
	for name, test := range map[string]struct {
		demands  []device.Demand
		file     map[string]device.Choice
		word     map[string]device.Choice
		contains string
		devices  int
	}{
		"alone":    {[]device.Demand{first}, map[string]device.Choice{"first": {gpu: {"d0"}}}, nil, "d0", 1},
		"has more": {[]device.Demand{both, app(gpu, 1)}, map[string]device.Choice{"first": {gpu: {"d0", "d1"}}, "main": {gpu: {"d1"}}}, map[string]device.Choice{"main": {gpu: {"d1"}}}, "d0 d1", 2},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, test.devices)
				r.checkpoint(test.file, map[string]map[string]device.Choice{"ns/a": test.word})
				r.RuntimeSynced(nil, nil)
				r.bind("a", test.demands...)
				r.bind("b", app(gpu, 1))
				r.expect("a", "first", "ready vendor.com/gpu["+test.contains+"]")
				r.expect("b", "main", "waiting DevicesUnknown")
				if got := r.LeftToKubelet(); !slices.Equal(got, []device.ResourceName{gpu}) {
					t.Errorf("the kubelet has %v", got)
				}
				r.Drop("a")
				r.after(time.Minute)
				r.kubelet(nil)
				r.expect("b", "main", "ready vendor.com/gpu[d0]")
				r.check()
			}, func(r *harness) { r.mute = true })
		})
	}
}

// A pod that waits has a new demand, since other resources are ignored: it waits for what that lacks.
func TestKubelet_WaitingPodHasANewDemand_WaitsForThat(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("side", device.App, nic, 1))
		r.bind("a", wants("side", device.App, nic, 1), app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.plugins.stock(nic, 1)
		r.plugins.stock(gpu, 1)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The checkpoint is believed where the kubelet is not asked.
func TestKubelet_IsNotAsked_CheckpointIsBelieved(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.kubelets.Store(&device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": {"main": {gpu: {"d1"}}}, "ended": {"main": {gpu: {"d0"}}}}})
		r.RuntimeSynced(nil, nil)
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting DevicesUnknown")
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// Deleted by force, a pod's container runs with a device that the kubelet assigns to the next pod.
func TestKubelet_AssignsAForgottenPodsDevice_NextPodWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ignoredUntilNow(1, func() { r.kubelet(has("a", "main", "d0")) })
		r.Replace([]device.PodDemand{withBoth(), pod("b", app(gpu, 1))})
		c := running("1", "a", "main")
		r.RuntimeSynced([]device.Running{c}, nil)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.Drop("a")
		r.kubelet(has("b", "main", "d0"))
		r.expect("b", "main", "waiting DeviceInUse")
		r.RuntimeStopped(c)
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// The kubelet has assigned a device that another pod has: the pod waits, whether devmgrd has assigned it others or not.
func TestKubelet_AssignsADeviceOfAnotherPod_PodWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("b", app(gpu, 1))
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.kubelet(map[string]map[string]device.Choice{"a": {"main": {gpu: {"d0"}}}, "c": {"main": {gpu: {"d1"}}}})
		r.bind("c", app(gpu, 1))
		r.expect("a", "main", "waiting DeviceInUse")
		r.expect("c", "main", "waiting DeviceInUse")
		r.Drop("b")
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("c", "main", "waiting DeviceInUse")
	}, func(r *harness) { r.mute = true })
}

// The scheduler counts a static pod's requests by its mirror pod, also of a resource that is ignored no longer.
func TestKubelet_StaticPod_RequestsAreTheSchedulers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(nic, 1)
		static := pod("a", wants("side", device.App, nic, 1))
		static.Local = true
		r.RuntimeSynced(nil, []device.PodDemand{static})
		r.expect("a", "side", "ready vendor.com/nic[d0]")
		r.halt()
		r.plugins.stock(gpu, 2)
		r.kubelet(has("a", "main", "d0"))
		r.start()
		static.Demands = append(static.Demands, pod("a", app(gpu, 1)).Demands...)
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d0")}, []device.PodDemand{static})
		mirror := pod("m", slices.Clone(static.Demands)...)
		mirror.Pod.Name, mirror.Mirror = "a", true
		r.bind("b", app(gpu, 1))
		r.Bind(mirror)
		r.expect("b", "main", "waiting DevicesUnknown")
		if got := r.Resources().Requested(); got[gpu] != 2 || got[nic] != 1 {
			t.Errorf("the scheduler counts 2 and 1, and here are %v", got)
		}
	}, func(r *harness) { r.mute = true })
}
