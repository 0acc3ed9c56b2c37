//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A device fails under a pod: its owner is informed, the container keeps running with it and, as health.onDeviceFailure says, the pod
// is evicted. The pod next to it is not touched.
func TestHealth_DeviceFailsUnderPod_OwnerIsInformed(t *testing.T) {
	for _, policy := range []string{"event", "evict"} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, "--set", "health.onDeviceFailure="+policy)
			p := r.plugin(gpu, 2)
			r.run("holder", gpu, 1)
			r.run("other", gpu, 1)
			stays := r.followPod("other")
			var held string
			out := r.says("assignments default/holder")
			for _, d := range p.Listed() {
				if strings.Contains(out, d.ID) {
					held = d.ID
				}
			}
			p.SetHealth(held, plugintest.Unhealthy)
			r.told("holder", "DeviceFailed")
			r.until("it is counted", func() bool { return r.metric(fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)) == 1 })
			r.says("devices", held, "failed 1 times in the last hour")
			if policy == "event" {
				r.says("devices", held, "assigned", "failed 1 times in the last hour", "unhealthy")
				r.says("explain default/holder", "ready", held)
				if len(r.running("holder").Env) == 0 {
					t.Error("the holder is gone")
				}
			} else {
				r.must(r.WaitPod(r.soon(), "default", "holder", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
				r.must(r.WaitShown(r.soon(), gpu, 1))
			}
			stays()
		})
	}
}

// The Node's numbers follow the health of devices, each change by one step. A device that gets unhealthy under a pod stays the
// pod's, counts as long as it is in use, and no other pod gets it.
func TestHealth_DevicesChange_CapacityFollows(t *testing.T) {
	r := start(t, "--set", "health.onFlapping=*=none")
	p := r.plugin(gpu, 4)
	// unhealthy makes the devices with these numbers unhealthy, and all others healthy.
	fail := func(numbers ...int) {
		all := plugintest.Devices(4)
		for _, i := range numbers {
			all[i].Health = plugintest.Unhealthy
		}
		p.Set(all...)
	}

	t.Run("nothing is in use", func(t *testing.T) {
		shows := r.in(t).followNumbers(gpu)
		shows(4)
		for _, numbers := range [][]int{{3}, {}, {0, 3}, {3}, {}} {
			fail(numbers...)
			shows(4 - int64(len(numbers)))
		}
	})

	// What upstream's test of the kubelet's numbers does. Where that has two numbers, what is healthy is both.
	t.Run("devices come, get unhealthy and go", func(t *testing.T) {
		r := r.in(t)
		other := plugintest.New(t, node.SocketDir, nic)
		other.Set(listed("one two three!")...)
		other.Serve()
		other.MustRegister()
		r.must(r.WaitShown(r.soon(), nic, 2))
		shows := r.followNumbers(nic)
		shows(2)
		for _, step := range []struct {
			list               string
			healthy, unhealthy float64
			changed            bool
		}{
			{list: "one two", healthy: 2},
			{list: "one two! three!", healthy: 1, unhealthy: 2, changed: true},
			{list: "two! three!", unhealthy: 2, changed: true},
			{list: "one two! three!", healthy: 1, unhealthy: 2, changed: true},
		} {
			other.Set(listed(step.list)...)
			r.until("devmgrd knows of "+step.list, func() bool {
				return r.inState(nic, "free") == step.healthy && r.inState(nic, "unhealthy") == step.unhealthy
			})
			if step.changed {
				shows(int64(step.healthy))
			}
		}
	})

	t.Run("in use", func(t *testing.T) {
		r := r.in(t)
		r.must(r.Devmgrd.Kill()) // a new one does not know that the devices have flapped, and lowers the number soon
		r.must(r.StartDevmgrd(r.ctx))
		if got := r.run("holder", gpu, 1).Env["DEVICES"]; got != "dev-000000" {
			t.Fatalf("the pod has %q", got)
		}
		stayed, shows := r.followPod("holder"), r.followNumbers(gpu)
		shows(4)
		fail(0, 3)
		shows(3) // one that is in use counts still, the other does not

		// Who asks for more than is left is not scheduled, until there is more.
		r.must(r.Create(r.ctx, node.Pod("later", gpu, 3, "report", "--then-sleep")))
		r.unscheduled("later")
		r.told("later", "Insufficient "+gpu)
		fail(0)
		shows(4)
		if got := r.running("later").Env["DEVICES"]; got != "dev-000001,dev-000002,dev-000003" {
			t.Errorf("the pod that waited has %q", got)
		}
		r.must(r.Delete(r.ctx, "later"))

		// Who was scheduled, and finds a device unhealthy then, waits on the node. It counts there, so the number stays.
		p.Before(plugintest.Allocate, func(context.Context) error {
			fail(0, 2)
			return errors.New("dev-000002 is unhealthy")
		})
		r.must(r.Create(r.ctx, node.Pod("bound", gpu, 3, "report", "--then-sleep")))
		r.told("bound", "Warning WaitingForDevices: DeviceUnhealthy: vendor.example/gpu: 3 wanted, 2 of 4 free and healthy, 1 free but unhealthy")
		if n := r.metric(`devmgrd_pods_waiting{reason="DeviceUnhealthy"}`); n != 1 {
			t.Errorf("%v pods wait for a device to be healthy, want 1", n)
		}
		p.Before(plugintest.Allocate, nil)
		fail(0)
		if got := r.running("bound").Env["DEVICES"]; got != "dev-000001,dev-000002,dev-000003" {
			t.Errorf("the pod that waited has %q", got)
		}

		p.Set(append(p.Listed(), plugintest.Dev("one-more", plugintest.Healthy))...)
		shows(5) // it was 4 all the time
		fail(0)
		shows(4)

		// Unhealthy and unused it does not count, and healthy again it does.
		stayed()
		r.must(r.Delete(r.ctx, "holder"))
		shows(3)
		fail()
		shows(4)
		if got := r.run("next", gpu, 1).Env["DEVICES"]; got != "dev-000000" {
			t.Errorf("the next pod has %q", got)
		}
	})
}

// listed makes devices of a list of IDs, those with a "!" unhealthy.
func listed(list string) []*plugintest.Device {
	var all []*plugintest.Device
	for _, word := range strings.Fields(list) {
		id, unhealthy := strings.CutSuffix(word, "!")
		d := plugintest.Dev(id, plugintest.Healthy)
		if unhealthy {
			d.Health = plugintest.Unhealthy
		}
		all = append(all, d)
	}
	return all
}

// A device that becomes unhealthy again and again is suspended. Neither the plugin's restart nor the death of devmgrd ends that. A device that is listed
// as healthy and always refused is out of service too, until the plugin grants it.
func TestHealth_DeviceFlapsOrIsRefused_IsOutOfService(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 2)
	for n := range 3 {
		p.SetHealth("dev-000001", plugintest.Unhealthy)
		r.until("it is unhealthy, or suspended", func() bool { return r.inState(gpu, "free") == 1 })
		p.SetHealth("dev-000001", plugintest.Healthy)
		if n < 2 {
			r.until("it is healthy", func() bool { return r.inState(gpu, "free") == 2 })
		}
	}
	r.until("it is suspended", func() bool { return r.inState(gpu, "suspended") == 1 })
	r.untilCondition("DevicesHealthy", corev1.ConditionFalse, "DeviceUnhealthy")
	r.must(r.WaitShown(r.soon(), gpu, 1))
	r.says("devices", "dev-000001", "suspended", "suspended by devmgrd until", "3 times within an hour")

	p.Stop()
	r.must(r.Devmgrd.Kill())
	var refuses atomic.Bool
	p.OnAllocate = func(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		ids := request.ContainerRequests[0].DevicesIds
		if refuses.Load() && slices.Contains(ids, "dev-000000") {
			return nil, errors.New("it is off the bus")
		}
		return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{Envs: map[string]string{"DEVICES": strings.Join(ids, ",")}}}}, nil
	}
	p.Serve()
	r.must(r.StartDevmgrd(r.ctx))
	r.until("the plugin lists its devices", func() bool { return r.inState(gpu, "free") == 1 })
	r.says("devices", "dev-000001", "suspended", "suspended by devmgrd until")
	if got := r.run("a", gpu, 1).Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("a has %q", got)
	}
	r.says("uncordon " + gpu + "/dev-000001")
	r.must(r.WaitShown(r.soon(), gpu, 2)) // what devmgrd has found on the Node does not rise for 30 s
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != "dev-000001" {
		t.Errorf("b has %q", got)
	}

	r.must(r.Delete(r.ctx, "a"))
	r.must(r.Delete(r.ctx, "b"))
	r.until("both are free", func() bool { return r.inState(gpu, "free") == 2 })
	refuses.Store(true)
	if got := r.run("c", gpu, 1).Env["DEVICES"]; got != "dev-000001" {
		t.Errorf("c has %q", got)
	}
	r.says("devices", "dev-000000", "free", "refused once", "it is off the bus")
	r.must(r.Create(r.ctx, node.Pod("d", gpu, 1, "report", "--then-sleep")))
	r.until("the device is refused", func() bool { return r.inState(gpu, "refused") == 1 })
	r.says("devices", "dev-000000", "refused", "refused 3 times in a row, tried again at", "it is off the bus")
	r.says("explain default/d", "NotEnoughDevices", "1 refused until")
	r.untilCondition("DevicesHealthy", corev1.ConditionFalse, "DeviceRefused")
	r.until("the Node has the event", func() bool { return strings.Contains(r.Events(r.ctx, r.NodeName()), "DeviceRefused") })
	refuses.Store(false)
	if got := r.running("d").Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("d has %q", got)
	}
	r.until("the device is assigned", func() bool { return r.inState(gpu, "assigned") == 2 })
}
