package allocator_test

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// What a release requires is proved when the last pod leaves, and no pod joins meanwhile.
func TestSharing_LastPodLeaves_ItsReleaseIsProved(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", claims(app(gpu, 2), "x", "d0", "d1"))
		r.bind("b", sharing("main", "d0"))
		r.releaser.holds("a", opener)
		r.releaser.holds("b", opener)

		r.Drop("a") // keeps d1
		r.check()
		r.expectDeparts("a", "d1")
		r.bind("c", sharing("main", "d0")) // joins b
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.Drop("c")
		r.check()
		r.Drop("b")
		r.check()
		r.expectDeparts("a", "d0", "d1") // a and b could leave together, and a is the first
		r.expectDeparts("b")
		r.bind("e", sharing("main", "d0"))
		r.expect("e", "main", "waiting DeviceInUse")
		r.after(time.Minute)
		all, _ := r.Devices(gpu)
		if d := all[0]; d.State != device.StateBusy || d.Holder.Pod.Name != "a" || len(d.Sharers) != 0 {
			t.Errorf("d0 is %+v", d)
		}
		r.expect("e", "main", "waiting DeviceBusy")
		r.asked()
		r.releaser.holds("a", device.Release{})
		r.expect("e", "main", "ready vendor.com/gpu[d0]")
		r.expectAsked("e/main vendor.com/gpu [d0]")
	}, gated)
}

// A pod that returns while the release of its device is proved for another pod voids the proof.
func TestSharing_PodReturns_ProofIsVoid(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		r.RuntimeCreating(running("2", "b", "main"))
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.Drop("b")
		r.check()
		r.expectDeparts("a") // b has a container
		r.RuntimeStopped(running("2", "b", "main"))
		r.check()
		r.bind("b", sharing("main", "d0"))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.expectDeparts("a")
		r.releaser.holds("b", opener)
		r.Drop("b")
		r.after(time.Minute)
		r.expectDeparts("b", "d0")
	}, gated)
}

// slowJoin has pod b join the device of pod a, while the plugin of b's other resource takes 20 s to answer, and a end after a second.
func (r *harness) slowJoin(answer func() error) {
	r.plugins.stock(gpu, 1)
	r.plugins.stock(nic, 1)
	r.RuntimeSynced(nil, nil)
	r.bind("a", sharing("main", "d0"))
	r.expect("a", "main", "ready vendor.com/gpu[d0]")
	r.plugins.answers(func(_ context.Context, _ device.Pod, of device.ResourceName) error {
		if of != nic {
			return nil
		}
		time.Sleep(20 * time.Second)
		return answer()
	})
	both := sharing("main", "d0")
	both.Wants[nic] = 1
	r.Bind(pod("b", both))
	r.after(time.Second)
	r.releaser.holds("a", device.Release{Why: "command", Underway: true})
	r.Drop("a")
	r.after(5 * time.Second)
	r.expectDeparts("a") // neither proved nor given away while b's attempt depends on its grant
	if p := r.PodByUID("a"); p.PodAllocation == nil {
		r.t.Error("a is forgotten")
	}
}

func TestSharing_LastPodEndsWhileAnotherJoins_DeviceIsNotReleased(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.slowJoin(func() error { return nil })
		r.after(30 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0] vendor.com/nic[d0]")
		r.expectAsked("a/main vendor.com/gpu [d0]", "b/main vendor.com/nic [d0]")
		r.expectDeparts("a")
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("a is %+v", p)
		}
		r.releaser.holds("b", opener)
		r.Drop("b")
		r.check()
		r.expectDeparts("b", "d0", "d0")
	}, gated)
}

func TestSharing_LastPodEndsWhileAnotherFailsToJoin_DeviceIsReleasedFirst(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		failures := 1
		r.slowJoin(func() error {
			failures--
			if failures >= 0 {
				return errPlugin
			}
			return nil
		})
		r.after(30 * time.Second)
		r.expectDeparts("a", "d0")
		r.expect("b", "main", "waiting DeviceInUse")
		r.asked()
		r.releaser.holds("a", device.Release{})
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0] vendor.com/nic[d0]")
		r.expectAsked("b/main vendor.com/gpu [d0]", "b/main vendor.com/nic [d0]")
	}, gated)
}

// The commit may be in the state file: until the next one decides, b may have a's grant after a restart.
func TestSharing_LastPodEndsWhileAnotherIsInDoubt_DeviceIsReleasedAfterwards(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.slowJoin(func() error { r.disk.failsLate(errSync); return nil })
		r.after(30 * time.Second)
		r.check()
		r.expectDeparts("a")
		r.disk.failsLate(nil)
		r.after(5 * time.Second)
		r.expectDeparts("a", "d0")
		r.releaser.holds("a", device.Release{})
		r.asked()
		r.after(time.Minute)
		r.expectAsked("b/main vendor.com/gpu [d0]") // the plugin of the nic has granted it already
	}, gated)
}

// expectDeparts says which devices a proof is about; none: there is no proof.
func (r *harness) expectDeparts(uid device.PodUID, want ...device.ID) {
	r.t.Helper()
	r.releaser.mu.Lock()
	defer r.releaser.mu.Unlock()
	var got []device.ID
	for _, s := range device.Shares(r.releaser.departed[uid].Assignments) {
		got = append(got, s.IDs...)
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("the release of %s is about %v, want %v", uid, got, want)
	}
}

func TestSharing_RestartWhileReleaseIsProved_PodDoesNotJoin(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.after(time.Minute)
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.after(time.Minute)
		r.bind("c", sharing("main", "d0"))
		r.expect("c", "main", "waiting DeviceBusy")
		r.after(time.Minute)
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.expect("c", "main", "waiting DeviceInUse")
		r.Replace([]device.PodDemand{pod("c", sharing("main", "d0"))})
		r.after(time.Minute)
		r.expect("c", "main", "waiting DeviceBusy")
		r.expectDeparts("a", "d0")
	}, gated)
}

func TestSharing_PodReturns_ProofOfOtherDevicesGoesOn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.bind("a", claims(app(gpu, 2), "x", "d0", "d1"))
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d2"))
		r.bind("aa", sharing("main", "d0"))
		r.after(time.Minute)
		r.releaser.holds("a", opener)
		r.releaser.holds("b", opener)
		for _, n := range []string{"a", "b", "aa"} {
			r.Drop(device.PodUID(n))
		}
		r.check()
		r.expectDeparts("a", "d0", "d1")
		r.expectDeparts("b", "d2")
		r.bind("z", claims(app(gpu, 1), "z", "d1"))
		r.after(time.Minute)
		r.releaser.runs("a", true)
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d2"))
		r.check()
		r.expectDeparts("a", "d1")
		r.expect("b", "main", "waiting DeviceBusy")
		r.releaser.runs("a", false)
		r.expect("b", "main", "ready vendor.com/gpu[d0 d2]")
		r.releaser.holds("a", device.Release{})
		r.expect("z", "main", "ready vendor.com/gpu[d1]")
	}, gated)
}

func TestSharing_PodReturns_WaitsForTheCommandOfAnother(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d1"))
		r.after(time.Minute)
		r.releaser.holds("a", opener)
		r.releaser.holds("b", opener)
		r.Drop("b")
		r.Drop("a") // the last that leaves d0
		r.after(time.Minute)
		r.releaser.runs("a", true) // its command is being stopped, and pods that share the device wait for its end
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d1"))
		r.after(time.Minute)
		r.expect("b", "main", "waiting DeviceBusy")
		r.releaser.runs("a", false)
		r.check()
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("a is %+v", p)
		}
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
	}, gated)
}

func TestSharing_NewPodWaits_ProofGoesOn(t *testing.T) {
	t.Parallel()
	for _, claim := range []device.ClaimUID{"x", "y"} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			r.RuntimeSynced(nil, nil)
			r.bind("a", sharing("main", "d0"))
			r.after(time.Minute)
			r.releaser.holds("a", device.Release{Why: "command", Underway: true})
			r.Drop("a")
			r.after(time.Second)
			r.expectDeparts("a", "d0")
			before := r.releaser.forgets
			r.bind("b", claims(app(gpu, 1), claim, "d0"))
			r.after(time.Minute)
			if n := r.releaser.forgets - before; n > 0 {
				t.Errorf("%s: the proof has begun again %d times", claim, n)
			}
		}, gated)
	}
}

func TestSharing_SomeDevicesKept_ReleaseIsNotAboutTheirNodes(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.nodes = true
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", claims(app(gpu, 2), "x", "d0", "d1"))
		r.bind("b", sharing("main", "d0"))
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.check()
		r.expectDeparts("a", "d1")
		r.releaser.mu.Lock()
		defer r.releaser.mu.Unlock()
		g := r.releaser.departed["a"].Assignments[0].Shares[0].Grant
		if len(g.Nodes) != 1 || g.Nodes[0].HostPath != "/dev/d1" || !slices.Equal(g.CDI, []string{"vendor.com/gpu=d1"}) {
			t.Errorf("the release is about %+v", g)
		}
	}, gated)
}

// The plugin has granted a node of its own to the pod that leaves first.
func TestSharing_GrantsDiffer_EachPodsNodesAreProved(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.nodes, r.plugins.nodeFor = true, "a"
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d1"))
		r.bind("c", sharing("main", "d0")) // with a's grant
		r.releaser.holds("a", opener)
		r.Drop("c")
		r.check()
		r.expectDeparts("c") // a has the same nodes
		if p := r.PodByUID("c"); p.PodAllocation != nil {
			t.Errorf("c is %+v", p)
		}
		r.Drop("a")
		r.check()
		r.releaser.mu.Lock()
		all := slices.Collect(maps.Values(maps.Collect(device.Shares(r.releaser.departed["a"].Assignments))))
		r.releaser.mu.Unlock()
		if len(all) != 1 || len(all[0].IDs) > 0 || len(all[0].Grant.Nodes) != 1 || all[0].Grant.Nodes[0].HostPath != "/dev/d0-a" {
			t.Errorf("the release of a is about %+v", all)
		}
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
		r.bind("e", sharing("main", "d0")) // joins b
		r.expect("e", "main", "ready vendor.com/gpu[d0]")
		r.releaser.holds("a", device.Release{})
		r.after(time.Second)
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("a is %+v", p)
		}
	}, gated)
}

// A pod of the claim has used the device, and its release was left to the one that stays. That one has not run, and its grant could not be used.
func TestSharing_PodThatStaysIsPlannedAgain_ReleaseIsProved(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		start(r, running("1", "a", "main"))
		r.releaser.holds("b", opener)
		r.Drop("a")
		r.RuntimeStopped(running("1", "a", "main"))
		r.check()
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("a is %+v", p)
		}
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.Refused(device.Container{Pod: "b", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
		r.after(time.Minute)
		r.Drop("b")
		r.check()
		r.plugins.answers(nil)
		r.bind("c", claims(app(gpu, 1), "y", "d0"))
		r.expect("c", "main", "waiting DeviceInUse")
		r.expectDeparts("b", "d0")
		r.releaser.holds("b", device.Release{})
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// The pod that has run ends while the containers of the other one are examined.
func TestSharing_LastUserEndsBeforeTheOtherIsPlannedAgain_ReleaseIsProved(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		start(r, running("1", "a", "main"))
		r.RuntimeCreating(running("2", "b", "main"))
		r.RuntimeInjected(running("2", "b", "main"))
		r.releaser.holds("b", opener)
		examined := make(chan struct{})
		r.plugins.looks = func() { <-examined }
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.Refused(device.Container{Pod: "b", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
		r.after(2 * time.Minute)
		r.Drop("a")
		r.RuntimeStopped(running("1", "a", "main"))
		r.check()
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("a is %+v", p)
		}
		close(examined)
		r.after(time.Minute)
		r.Drop("b")
		r.RuntimeStopped(running("2", "b", "main"))
		r.check()
		r.plugins.answers(nil)
		r.bind("c", claims(app(gpu, 1), "y", "d0"))
		r.expect("c", "main", "waiting DeviceInUse")
		r.expectDeparts("b", "d0")
	}, gated)
}
