package allocator_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// kubelet has the kubelet assign devices of gpu to a container of pod a.
func (r *harness) kubelet(container string, ids ...device.ID) {
	r.kubelets = &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": {container: {gpu: ids}}}}
	r.Refresh()
}

// A resource is ignored no longer. The kubelet has the pod's next containers get the same device, also while devmgrd is away.
func TestKubelet_ResourceIsNoLongerIgnored_DeviceStaysThePods(t *testing.T) {
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
					has := said("1", "a", now[len(now)-1].Container.Name, "d0")
					r.kubelets = &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": {has.Container.Name: {gpu: {"d0"}}}}}
					r.start()
					var all []device.Running
					if runs {
						all = append(all, has)
					}
					r.RuntimeSynced(all, nil)
					bound := []device.PodDemand{pod("a", now...), pod("b", app(gpu, 1)), pod("c", app(gpu, 1))}
					r.Replace(bound)
					stands := func(requests int) {
						t.Helper()
						r.expect("a", "side", "ready vendor.com/nic[d0]")
						r.expect("b", "main", "ready vendor.com/gpu[d1]")
						r.expect("c", "main", "waiting NotEnoughDevices")
						r.published(map[device.ResourceName]int{gpu: 2, nic: 1})
						if n := r.Resources().Requested()[gpu]; n != requests {
							t.Errorf("the scheduler counts %d requests, and here are %d", requests, n)
						}
						r.check()
					}
					stands(3)
					r.RuntimeStopped(has)
					stands(3)
					r.restart()
					r.RuntimeSynced(nil, nil)
					stands(2) // before the API server has listed the pods
					r.Replace(bound)
					stands(3)
					r.Drop("a")
					r.expect("c", "main", "ready vendor.com/gpu[d0]")
				}, func(r *harness) { r.mute = true })
			})
		}
	}
}

// A pod is admitted while its plugin is still with the kubelet, and waits for devmgrd's hook until the plugin has come.
func TestKubelet_AssignsBeforeThePluginComes_PodHasThatDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.kubelets = &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": {"main": {gpu: {"d1"}}}}}
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// A pod with a device by the kubelet gets no other one, though none of its containers has run since the boot.
func TestKubelet_PluginFailsAfterTheBoot_PodGetsNoOtherDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.kubelet("main", "d1")
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

// The file names other containers, or more devices, than the pod requests.
func TestKubelet_NotRequested_DoesNotCount(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		for i, ids := range [][]device.ID{{"d0", "d1"}, {"d0"}} {
			r.kubelet([]string{"main", "other"}[i], ids...)
			r.bind("a", app(gpu, 1))
			r.bind("b", app(gpu, 1))
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			r.expect("b", "main", "ready vendor.com/gpu[d1]")
			r.check()
			r.Drop("b")
			r.Drop("a")
			r.after(time.Second)
		}
	}, func(r *harness) { r.mute = true })
}

// What a pod requests is not known until the API server has listed it.
func TestKubelet_NotRequested_CountsUntilThePodIsListed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.after(2 * time.Second) // it is on disk
		r.restart()
		r.kubelet("main", "d0", "d1")
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// A pod that waits for devmgrd ends, with a device by the kubelet, before it is on disk and later.
func TestKubelet_WaitingPodEnds_DeviceIsFree(t *testing.T) {
	t.Parallel()
	for _, waited := range []time.Duration{0, time.Minute} {
		run(t, func(r *harness) {
			r.kubelet("main", "gone")
			r.RuntimeSynced(nil, nil)
			r.bind("a", app(gpu, 1))
			r.expect("a", "main", "waiting PluginMissing")
			r.after(waited)
			r.Drop("a")
			r.after(time.Second)
			r.plugins.stock(gpu, 1)
			r.after(time.Second)
			all, _ := r.Devices(gpu)
			if len(all) != 1 {
				t.Errorf("after a wait of %s the devices are %v", waited, all)
			}
			r.check()
		}, func(r *harness) { r.mute = true })
	}
}

// Containers may have devices by a checkpoint that cannot be read: nothing of what they request is assigned.
func TestKubelet_CheckpointIsUnread_ResourceIsPaused(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(r *harness, c device.Running){
		"the checkpoint can be read": func(r *harness, _ device.Running) { r.kubelet("main", "d0") },
		"it names nothing":           func(r *harness, _ device.Running) { r.kubelet("other", "d0") },
		"the container has ended":    func(r *harness, c device.Running) { r.Drop("a"); r.RuntimeStopped(c) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				r.RuntimeSynced(nil, nil)
				c := running("1", "a", "main")
				r.RuntimeSynced([]device.Running{c}, nil)
				r.bind("b", app(gpu, 1))
				r.expect("b", "main", "ready vendor.com/gpu[d0]") // no pod that is known requests what it may have
				r.Drop("b")
				r.bind("a", app(gpu, 1))
				r.bind("b", app(gpu, 1))
				r.expect("b", "main", "waiting DevicesUnknown")
				ends(r, c)
				r.expect("b", "main", map[bool]string{true: "ready vendor.com/gpu[d1]", false: "ready vendor.com/gpu[d0]"}[name != "the container has ended"])
				if bare := slices.Contains(r.plugins.told, "a/main is bare"); bare != (name == "it names nothing") {
					t.Errorf("reported to run without devices: %v", bare)
				}
				r.check()
			}, func(r *harness) { r.mute, r.kubelets = true, &device.Kubelets{Unread: true} })
		})
	}
}
