package allocator_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// expectClaimable compares how many devices the slices may show.
func (r *harness) expectClaimable(what string, want int) {
	r.t.Helper()
	n := 0
	all, _ := r.Devices(gpu)
	for _, d := range all {
		if d.Claimable {
			n++
		}
	}
	if n != want {
		r.t.Errorf("%s: %d devices are claimable, want %d", what, n, want)
	}
}

// A pod that waits for any device of the resource may be assigned each that is free, so none of them is claimable. Pods that take none of them do
// not count: those that have their devices, and those that could not be served if no other pod had a device.
func TestClaimable_PodsWait_FreeDevicesAreHiddenForThoseThatTakeOne(t *testing.T) {
	t.Parallel()
	refused := device.Wait{Reason: device.Overruled, Message: "another NRI plugin removes a mount"}
	for name, c := range map[string]struct {
		demands []device.Demand
		then    func(*harness)
		want    int
	}{
		"has its device":                    {[]device.Demand{app(gpu, 1)}, nil, 3},
		"has it, and its container refused": {[]device.Demand{app(gpu, 1)}, func(r *harness) { r.Refused(device.Container{Pod: "p", Name: "main"}, refused, false) }, 3},
		"requests more than there are":      {[]device.Demand{app(gpu, 8)}, nil, 4},
		"requests more than are healthy": {[]device.Demand{app(gpu, 4)}, func(r *harness) {
			r.Drop("p")
			r.plugins.stock(gpu, 4, 0)
			r.bind("q", app(gpu, 4))
			r.expect("q", "main", "waiting DeviceUnhealthy")
		}, 4},
		"requests what no plugin lists":      {[]device.Demand{{Container: device.Container{Pod: "p", Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{gpu: 1, nic: 1}}}, nil, 4},
		"requests all while another has one": {[]device.Demand{app(gpu, 1)}, func(r *harness) { r.bind("q", app(gpu, 4)) }, 0},
		"cannot be read":                     {[]device.Demand{{Container: device.Container{Pod: "p", Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{gpu: 1}, Mistake: "no", Blocked: device.NoClaim}}, nil, 4},
		"is being read":                      {[]device.Demand{{Container: device.Container{Pod: "p", Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{gpu: 1}, Mistake: "yet", Blocked: device.Allocating}}, nil, 0},
		"waits with a claim": {[]device.Demand{app(gpu, 1)}, func(r *harness) {
			r.bind("q", claims(app(gpu, 1), "x", "d0"))
			r.expect("q", "main", "waiting DeviceInUse")
		}, 3},
		"has a device by a claim": {[]device.Demand{sharing("main", "d0")}, nil, 4},
		"waits for a claimed one, of many": {[]device.Demand{sharing("main", "d0")}, func(r *harness) {
			r.bind("q", app(gpu, 4))
			r.expect("q", "main", "waiting NotEnoughDevices")
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 4)
				r.RuntimeSynced(nil, nil)
				r.Replace(nil)
				r.bind("p", c.demands...)
				if c.then != nil {
					c.then(r)
				}
				r.after(time.Hour)
				r.expectClaimable(name, c.want)
				if by := r.Resources().ByName[gpu].Awaited; (by.Name != "") != (c.want < 3) {
					t.Errorf("%d devices are claimable, and said to be awaited by %q", c.want, by.Name)
				}
			})
		})
	}
}

// On the way back from slices the Node shows a number. A pod waits with a claim for a device that is not part of it, or that a pod of the number has.
func TestCapacity_ClaimedDevice_IsSubtractedOnlyIfItCounts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4, 0)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.bind("x", sharing("main", "d0"), sharing("second", "d0"))
		r.expect("x", "main", "waiting DeviceUnhealthy")
		r.published(map[device.ResourceName]int{gpu: 3})
		r.bind("y", claims(app(gpu, 1), "y", "d1"))
		r.expect("y", "main", "ready vendor.com/gpu[d1]")
		r.published(map[device.ResourceName]int{gpu: 2})
		r.bind("n", app(gpu, 1))
		r.expect("n", "main", "ready vendor.com/gpu[d2]")
		r.bind("z", claims(app(gpu, 1), "z", "d2"))
		r.expect("z", "main", "waiting DeviceInUse")
		r.published(map[device.ResourceName]int{gpu: 2})
		r.plugins.stock(gpu, 4)
		r.expect("x", "main", "ready vendor.com/gpu[d0]")
		r.published(map[device.ResourceName]int{gpu: 2})
		for _, name := range []string{"x", "y", "z"} {
			r.Drop(device.PodUID(name))
		}
		r.published(map[device.ResourceName]int{gpu: 4})
	})
}

// A devmgrd that has just started knows the pods of the API server before it has read their claims, and a claim may name a device that its plugin does not
// list. The Node's number leaves out the devices of these claims, as before the start.
func TestCapacity_ClaimsAreReadAgain_DevicesAreNotPromisedTwice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		x, y := sharing("main", "d0", "d1"), claims(app(gpu, 2), "y", "d0", "d2")
		r.bind("x", x)
		r.expect("x", "main", "ready vendor.com/gpu[d0 d1]")
		r.bind("y", y)
		r.expect("y", "main", "waiting DeviceInUse")
		one := map[device.ResourceName]int{gpu: 1}
		r.published(one)
		r.restart()
		r.RuntimeSynced(nil, nil)
		none := device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Mistake: "not read"}
		part := sharing("main", "d0")
		part.Mistake = "d1 is not listed"
		for _, unread := range []struct {
			why    device.Reason
			demand device.Demand
		}{{device.Allocating, none}, {device.ClaimUnknown, none}, {device.DeviceGone, part}, {device.PodTooLarge, none}} {
			unread.demand.Blocked = unread.why
			r.Replace([]device.PodDemand{pod("x", unread.demand), pod("y", unread.demand)})
			r.published(one)
			r.expect("x", "main", "ready vendor.com/gpu[d0 d1]")
			r.expect("y", "main", "waiting "+string(unread.why))
			if n := r.Resources().ByName[gpu].Requested; n != 0 {
				t.Errorf("%s: %d devices are requested by the Node's number, want none", unread.why, n)
			}
		}
		r.Replace([]device.PodDemand{pod("x", x), pod("y", y)})
		r.published(one)
		r.expect("y", "main", "waiting DeviceInUse")
		r.Replace(nil)
		r.published(map[device.ResourceName]int{gpu: 4})
	})
}

// Claims are read one after the other: what is known of them grows while the pod waits.
func TestCapacity_ClaimsAreReadOneByOne_AllThatIsKnownCounts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		for n, ids := range [][]device.ID{{"d0"}, {"d0", "d1"}, {"d2"}} {
			d := sharing("main", ids...)
			d.Mistake, d.Blocked = fmt.Sprintf("claim %d cannot be read", n), device.ClaimUnknown
			r.bind("x", d)
			r.published(map[device.ResourceName]int{gpu: 3 - n})
		}
		r.Replace(nil)
		r.published(map[device.ResourceName]int{gpu: 4})
	})
}

// A pod that is leaving has left when devmgrd starts and its claims have not been read. The number leaves out its devices until they are released.
func TestCapacity_PodHasLeftBeforeItsClaimsAreRead_DevicesAreNotPromised(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.bind("x", sharing("main", "d0", "d1"))
		r.expect("x", "main", "ready vendor.com/gpu[d0 d1]")
		r.releaser.holds("x", opener)
		leaving := pod("x", sharing("main", "d0", "d1"))
		leaving.Leaving = true
		r.Replace([]device.PodDemand{leaving})
		r.after(time.Second)
		two := map[device.ResourceName]int{gpu: 2}
		r.published(two)
		r.restart()
		r.RuntimeSynced(nil, nil)
		unread := pod("x", device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Mistake: "not read", Blocked: device.Allocating})
		unread.Leaving = true
		for _, p := range []device.PodDemand{unread, leaving} {
			r.after(time.Second)
			r.Replace([]device.PodDemand{p})
			r.after(time.Second)
			r.published(two)
		}
	}, gated)
}

// The wait of a pod whose claims cannot be read has that reason, also while the kubelet has devices of the resource.
func TestKubelet_ClaimIsNotRead_ThatIsTheReason(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("x", claims(app(gpu, 1), "y", "d0"))
		r.expect("x", "main", "waiting DeviceInUse")
		r.kubelets.Store(&device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{"k": {"main": {gpu: {"d3"}}}}})
		r.KubeletChanged()
		r.bind("k", app(gpu, 1))
		r.bind("x", device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Mistake: "not read", Blocked: device.ClaimUnknown})
		r.expect("x", "main", "waiting ClaimUnknown")
	})
}
