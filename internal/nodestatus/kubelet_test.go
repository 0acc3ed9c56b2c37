package nodestatus_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// A kubelet that still has a resource fails the pods that the scheduler binds by its number. The Node shows the devices of pods
// that are bound, or that the kubelet has none; all of them when the kubelet has forgotten the resource.
func TestKubeletManagesIt_NoFreeDeviceIsPublished(t *testing.T) {
	t.Parallel()
	const gpu, nic, fpga device.ResourceName = "a.example/gpu", "a.example/nic", "a.example/fpga"
	api := kubetest.New(t)
	api.Put(node(map[string]string{string(gpu): "4", string(nic): "4"}, map[string]string{string(gpu): "0", string(nic): "0"}))
	v := newView(quantities{gpu: 4, nic: 4, fpga: 2})
	v.partial = true
	v.bind(quantities{nic: 3})
	v.setKubelets(gpu, nic, "other.example/tpu")
	p, registry := publish(t, api, v)
	untilShows(t, api, map[string]string{string(gpu): "4/0", string(nic): "4/0", string(fpga): "2/2"})
	v.complete()
	untilShows(t, api, map[string]string{string(gpu): "4/0", string(nic): "3/3", string(fpga): "2/2"})
	untilSettled(t, p)
	if all := p.Limits(); len(all) != 1 || !strings.Contains(all[0].Text, "it has [a.example/gpu a.example/nic] too") {
		t.Errorf("limits: %v", all)
	}
	if all := v.alarms(); len(all) != 2 {
		t.Errorf("alarms: %v", all)
	}
	for r, want := range map[string]float64{"gpu": 1, "nic": 1, "fpga": 0} {
		if got := gathered(t, registry)["devmgrd_node_capacity_contested{a.example/"+r+"}"]; got != want {
			t.Errorf("%s contested: %v", r, got)
		}
	}
	api.Put(node(map[string]string{string(gpu): "4", string(nic): "3", string(fpga): "2"}, map[string]string{string(gpu): "2", string(nic): "3", string(fpga): "2"}))
	untilShows(t, api, map[string]string{string(gpu): "0/0", string(nic): "3/3", string(fpga): "2/2"})
	if patches := api.Patches(); len(patches) > 5 { // at once, without a window: fpga; nic, and later gpu, away for a second, and back
		t.Errorf("patches: %q", patches)
	}
	v.setKubelets()
	untilShows(t, api, map[string]string{string(gpu): "4/4", string(nic): "4/4", string(fpga): "2/2"})
	untilSettled(t, p)
	if all := p.Limits(); all != nil {
		t.Errorf("limits are left: %v", all)
	}
	if n := series(t, registry, "devmgrd_node_capacity_contested"); n != 0 {
		t.Errorf("%d resources are still contested", n)
	}
}

const managedGPU device.ResourceName = "a.example/gpu"

// managed makes a Node with four devices that the kubelet has too, of which so many are allocatable, and a view with pods that request so many.
func managed(api *kubetest.Server, allocatable string, requested int) *view {
	api.Put(node(map[string]string{string(managedGPU): "4"}, map[string]string{string(managedGPU): allocatable}))
	v := newView(quantities{managedGPU: 4})
	v.bind(quantities{managedGPU: requested})
	v.setKubelets(managedGPU)
	return v
}

// A kubelet that has a resource writes its own values with each status. devmgrd's follow in one patch each, since allocatable rises, and nothing is
// reported a second time.
func TestKubeletManagesIt_WritesItsOwnValues_NumberOfPodsFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		v := managed(api, "0", 1)
		p, _ := publish(t, api, v)
		for range 5 {
			untilShows(t, api, map[string]string{string(managedGPU): "1/1"})
			synctest.Wait()
			api.Put(node(map[string]string{string(managedGPU): "4"}, map[string]string{string(managedGPU): "0"}))
			time.Sleep(time.Second)
		}
		untilShows(t, api, map[string]string{string(managedGPU): "1/1"})
		synctest.Wait()
		if err := p.Check(); err != nil || len(v.alarms()) != 1 {
			t.Errorf("check: %v, alarms: %v", err, v.alarms())
		}
		if n := len(api.Patches()); n != 6 {
			t.Errorf("%d patches: %q", n, api.Patches())
		}
	})
}

// A pod that is bound past the scheduler may ask for any number.
func TestKubeletManagesIt_PodAsksForMore_NumberIsThatOfDevices(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	v := managed(api, "0", 1000)
	p, _ := publish(t, api, v)
	untilSettled(t, p)
	untilShows(t, api, map[string]string{string(managedGPU): "4/4"})
}

// What devmgrd restores when it ends is that lower number, too.
func TestKubeletManagesIt_EndsWhileItIsWithdrawn_NumberOfPodsIsShown(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	v := managed(api, "4", 1)
	p, _ := newPublisher(t, api, v)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	kubetest.Until(t, "it is off the Node", func() bool { _, is := shows(api)[string(managedGPU)]; return !is })
	stop()
	<-done
	if got := shows(api)[string(managedGPU)]; got != "1/1" {
		t.Errorf("the Node shows %s", got)
	}
}
