package allocator_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet is not asked, or has not answered. The checkpoint keeps the name of a pod that has ended.
func TestKubelet_CheckpointOnly_PodEnds_OthersGetTheirs(t *testing.T) {
	t.Parallel()
	for _, asked := range []bool{false, true} {
		t.Run(map[bool]string{true: "asked", false: "not asked"}[asked], func(t *testing.T) {
			run(t, func(r *harness) {
				r.ignoredUntilNow(2, func() {
					r.kubelets.Store(&device.Kubelets{Asked: asked, Pods: map[device.PodUID]map[string]device.Choice{"a": {"main": {gpu: {"d1"}}}}})
				})
				r.RuntimeSynced(nil, nil)
				r.Replace([]device.PodDemand{withBoth(), pod("b", app(gpu, 1))})
				r.after(10 * time.Second)
				r.expect("b", "main", "waiting DevicesUnknown")
				r.Drop("a")
				r.after(10 * time.Minute)
				r.expect("b", "main", "ready vendor.com/gpu[d0]")
			}, func(r *harness) { r.mute = true })
		})
	}
}

// The kubelet forgets a pod that has ended before the API server does, and does not write its checkpoint.
func TestKubelet_ForgetsThePodFirst_OthersGetTheirs(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("side", device.App, nic, 1))
		r.halt()
		r.plugins.stock(gpu, 2)
		file := map[string]device.Choice{"main": {gpu: {"d1"}}}
		r.checkpoint(file, has("ns/a", "main", "d1"))
		r.start()
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, nil)
		r.Replace([]device.PodDemand{withBoth(), pod("b", app(gpu, 1))})
		r.expect("b", "main", "waiting DevicesUnknown")
		r.RuntimeStopped(running("1", "a", "main"))
		r.checkpoint(file, map[string]map[string]device.Choice{})
		r.expect("b", "main", "waiting DevicesUnknown")
		r.Drop("a")
		r.after(10 * time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The pod that the checkpoint names waits itself, and ends.
func TestKubelet_WaitingPodEnds_OthersGetTheirs(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
		file := map[string]device.Choice{"main": {gpu: {"d1"}}}
		r.checkpoint(file, map[string]map[string]device.Choice{})
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "waiting DevicesUnknown")
		r.expect("b", "main", "waiting DevicesUnknown")
		r.Drop("a")
		r.after(10 * time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The checkpoint names pods that are gone. A static pod is planned before the API server has listed the pods.
func TestKubelet_CheckpointNamesGonePods_StaticPodWaitsForTheList(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.kubelets.Store(&device.Kubelets{Asked: true, Word: map[string]map[string]device.Choice{"ns/a": {}}, Pods: map[device.PodUID]map[string]device.Choice{"gone": {"main": {gpu: {"d1"}}}}})
		r.restart()
		static := pod("a", app(gpu, 1))
		static.Local = true
		r.RuntimeSynced(nil, []device.PodDemand{static})
		r.expect("a", "main", "waiting DevicesUnknown")
		r.Replace(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The kubelet restarts, and for a moment knows no pods. Then devmgrd assigns the pod its device.
func TestKubelet_ForgetsAndKnowsAgain_OthersGetTheirs(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.kubelet(has("a", "main", "d1"))
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d1")}, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.checkpoint(map[string]device.Choice{"main": {gpu: {"d1"}}}, map[string]map[string]device.Choice{}) // the kubelet restarts
		r.after(time.Second)
		r.kubelet(has("a", "main", "d1"))
		r.after(time.Second)
		r.plugins.stock(gpu, 2)
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting DevicesUnknown")
		r.kubelet(nil) // restarted without its checkpoint
		r.after(10 * time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// Deleted by force, the pod of a StatefulSet has a successor of the same name, and its container still runs.
func TestKubelet_AssignsAForgottenPodsDeviceToItsSuccessor_Waits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ignoredUntilNow(1, func() { r.kubelet(has("a", "main", "d0")) })
		b := pod("b", app(gpu, 1))
		b.Pod.Name = "a"
		r.Replace([]device.PodDemand{withBoth()})
		c := running("1", "a", "main")
		r.RuntimeSynced([]device.Running{c}, nil)
		r.after(time.Second)
		r.Drop("a")
		r.Bind(b)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.kubelets.Store(&device.Kubelets{Asked: true, Pods: map[device.PodUID]map[string]device.Choice{"b": {"main": {gpu: {"d0"}}}}, Word: map[string]map[string]device.Choice{"ns/a": {"main": {gpu: {"d0"}}}}})
		r.KubeletChanged()
		r.expect("b", "main", "waiting DeviceInUse")
		r.RuntimeStopped(c)
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// The kubelet is not asked. Deleted by force, a pod runs with a device by it, in a container made after the runtime has listed its own.
func TestKubelet_IsNotAsked_ContainerOfADeletedPodKeepsItsDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ignoredUntilNow(1, func() {
			r.kubelets.Store(&device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"a": {"main": {gpu: {"d0"}}}}})
		})
		r.RuntimeSynced(nil, nil)
		r.Replace([]device.PodDemand{withBoth()})
		r.after(10 * time.Second)
		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.RuntimeInjected(c)
		r.Drop("a")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting DevicesUnknown")
		r.RuntimeStopped(c)
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}
