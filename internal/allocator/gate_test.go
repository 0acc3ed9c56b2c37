package allocator_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A releaser replaces the proof that devices are free: a test sets its results.
type releaser struct {
	mu       sync.Mutex
	held     map[device.PodUID]device.Release // the pods whose devices are not free
	departed map[device.PodUID]device.Departure
	changed  chan struct{}
	forgets  int                    // proofs in progress that were ended
	running  map[device.PodUID]bool // commands
	proves   func(device.Departure)
	dropped  []device.ResourceName
}

func gated(r *harness) {
	r.releaser = &releaser{held: map[device.PodUID]device.Release{}, departed: map[device.PodUID]device.Departure{}, changed: make(chan struct{}, 1), running: map[device.PodUID]bool{}}
}

func (g *releaser) Release(d device.Departure) *device.Release {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.departed[d.Pod.UID] = d
	if d.Failed != "" {
		return &device.Release{Why: d.Failed, Failed: d.Failed}
	}
	if why, is := g.held[d.Pod.UID]; is {
		return &why
	}
	if g.proves != nil {
		g.proves(d)
	}
	return nil
}

func (g *releaser) Forget(uid device.PodUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, is := g.departed[uid]; is {
		g.forgets++
	}
	delete(g.departed, uid)
}

func (g *releaser) ForgetResource(r device.ResourceName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dropped = append(g.dropped, r)
}

func (g *releaser) Running(uid device.PodUID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[uid]
}

// runs has a command for a pod's devices run, or end.
func (g *releaser) runs(uid device.PodUID, is bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[uid] = is
	loops.Signal(g.changed)
}

func (g *releaser) Changed() <-chan struct{} { return g.changed }

func (g *releaser) forgotten() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.departed)
}

// holds has the devices of a pod be in use; an empty Release: they no longer are.
func (g *releaser) holds(uid device.PodUID, why device.Release) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if why.Why+why.Failed == "" && len(why.Holders) == 0 {
		delete(g.held, uid)
	} else {
		g.held[uid] = why
	}
	loops.Signal(g.changed)
}

// asked returns the pods whose proof is under way.
func (g *releaser) asked() (all []device.PodUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid := range g.departed {
		all = append(all, uid)
	}
	slices.Sort(all)
	return all
}

var opener = device.Release{Holders: []device.Process{{PID: 4711, Command: "trainer", Holds: "has /dev/gpu0 open"}}}

// ends has pod a, which has the only device, end while pod b waits for it.
func (r *harness) ends(why device.Release) {
	r.plugins.stock(gpu, 1)
	r.RuntimeSynced(nil, nil)
	r.bind("a", app(gpu, 1))
	r.bind("b", app(gpu, 1))
	r.RuntimeCreating(running("1", "a", "main"))
	r.releaser.holds("a", why)
	r.Drop("a")
	r.RuntimeStopped(running("1", "a", "main"))
}

func (r *harness) expectState(want device.DeviceState) {
	r.t.Helper()
	all, _ := r.Devices(gpu)
	if got := all[0].State; got != want {
		r.t.Errorf("the device is %s, want %s", got, want)
	}
	if counts := r.Resources().ByName[gpu].States; counts[want] != 1 {
		r.t.Errorf("counted %v, want one that is %s", counts, want)
	}
}

func TestRelease_DeviceHeld_NextPodWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(time.Second)
		r.expectState(device.StateReleasing)
		r.published(map[device.ResourceName]int{gpu: 1})
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.after(2 * time.Second)
		r.expectState(device.StateBusy)
		r.expect("b", "main", "waiting DeviceBusy")
		if got := r.Readiness(device.Container{Pod: "b", Name: "main"}).Wait.Message; !strings.Contains(got, "process 4711 (trainer) has /dev/gpu0 open") {
			t.Errorf("the pod waits because %q", got)
		}
		r.published(map[device.ResourceName]int{gpu: 0})
		r.after(24 * time.Hour)
		r.expect("b", "main", "waiting DeviceBusy")
		r.releaser.holds("a", device.Release{})
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		if got := r.releaser.asked(); len(got) > 0 {
			t.Errorf("proofs under way: %v", got)
		}
	}, gated)
}

func TestRelease_DeviceHeld_HostIsNotAskedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(time.Minute)
		before := r.plugins.walks
		for _, name := range []string{"c", "d", "e"} { // each is written
			r.bind(name, app(gpu, 1))
			r.after(2 * time.Second)
		}
		if n := r.plugins.walks - before; n > 0 {
			t.Errorf("the host was asked %d times about a pod without processes", n)
		}
	}, gated)
}

func TestRelease_Restart_DeviceStaysHeld(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, time.Minute} {
		run(t, func(r *harness) {
			r.ends(opener)
			r.after(wait)
			r.restart()
			r.plugins.stock(gpu, 1)
			r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
			r.RuntimeSynced(nil, nil)
			r.after(10 * time.Second)
			r.expect("b", "main", "waiting DeviceBusy")
			r.releaser.holds("a", device.Release{})
			r.after(0)
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
		}, gated)
	}
}

// The vendor's command is not repeated after a failure: the operator decides.
func TestRelease_CommandFails_RestartDoesNotRepeatIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.after(10 * time.Second)
		r.restart()
		r.plugins.stock(gpu, 1)
		r.releaser.holds("a", device.Release{}) // the next run would succeed
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.RuntimeSynced(nil, nil)
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
		if got := r.releaser.departed["a"].Failed; got != "exit code 3" {
			t.Errorf("the failure is reported as %q", got)
		}
		r.restart()
		r.plugins.stock(gpu, 1)
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.RuntimeSynced(nil, nil)
		r.after(0)
		r.expectState(device.StateBusy) // at once: nothing else is waited for
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

func TestRelease_Uncordon_ReleasesABusyDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(time.Second)
		if lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil || len(lifted) > 0 {
			t.Errorf("while it is being released: %v, %v", lifted, err)
		}
		r.after(5 * time.Second)
		lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}})
		if err != nil || len(lifted) != 1 || !strings.Contains(lifted[0].Reason, "process 4711") {
			t.Errorf("uncordoned %v, %v", lifted, err)
		}
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// A command of an earlier process may run until systemd has named the units that are left: the operator's word counts all the same.
func TestRelease_UncordonWhileACommandRuns_DeviceIsFreeAtItsEnd(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.releaser.runs("a", true)
		r.after(10 * time.Second)
		if lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil || len(lifted) != 1 {
			t.Errorf("uncordoned %v, %v", lifted, err)
		}
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
		r.releaser.runs("a", false)
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// The write that releases the devices fails: the proof is not repeated, and the devices are not free before.
func TestRelease_WriteFails_DeviceStaysThePods(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(10 * time.Second)
		r.disk.fails(func() {})
		r.releaser.holds("a", device.Release{})
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
		r.disk.fails(nil)
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// A container that is created after the pod's end begins the proof afresh.
func TestRelease_ContainerAfterTheEnd_ProofBeginsAfresh(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(10 * time.Second)
		r.RuntimeCreating(running("2", "a", "main"))
		r.after(0)
		if got := r.releaser.asked(); len(got) > 0 {
			t.Errorf("with a container of the pod, proofs are under way: %v", got)
		}
		r.expectState(device.StateAssigned)
		r.releaser.holds("a", device.Release{})
		r.after(time.Minute)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(running("2", "a", "main"))
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// The pod was only away from the API: it keeps its devices.
func TestRelease_PodIsBack_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(10 * time.Second)
		r.bind("a", app(gpu, 1))
		r.after(0)
		r.expectState(device.StateAssigned)
		r.published(map[device.ResourceName]int{gpu: 1})
		if got := r.releaser.asked(); len(got) > 0 {
			t.Errorf("proofs under way: %v", got)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// The time in which a device is busy counts: no other pod has it.
func TestRelease_DeviceHeld_WaitingPodIsGivenUp(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		r.bind("a", app(gpu, 1))
		r.bindMovable("b", app(gpu, 1))
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.after(9 * time.Minute)
		r.expectGiven()
		r.after(2 * time.Minute)
		r.expectGiven("b given up after 10m0s: DeviceBusy")
	}, gated, func(r *harness) {
		r.giveUp = func(why device.Reason, _ device.ResourceName) time.Duration {
			if why == device.DeviceBusy {
				return 10 * time.Minute
			}
			return 0
		}
	})
}

// The process that outlives its pod is named.
func TestRelease_ProcessesLive_AreNamed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.plugins.haunt("a")
		r.Drop("a")
		r.after(10 * time.Second)
		r.expectState(device.StateBusy)
		want := "vendor.com/gpu: 1 wanted, 0 of 1 free, 1 busy although the pod has ended: process 7 (stuck) has not ended"
		if got := r.Readiness(device.Container{Pod: "b", Name: "main"}).Wait; got.Reason != device.DeviceBusy || got.Message != want {
			t.Errorf("waits for %s: %q, want %q", got.Reason, got.Message, want)
		}
		r.plugins.blind = errors.New("the host does not answer") // then the runtime's report decides
		r.plugins.haunt()
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// An idle container starts while the host is asked, and leaves a process: the host is asked again after the container's end.
func TestRelease_IdleContainerStarts_HostIsAskedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.RuntimeCreating(running("1", "a", "main"))
		left := running("1", "a", "main")
		left.Idle = true
		r.RuntimeSynced([]device.Running{left}, nil)
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.after(time.Minute) // proved idle and without a process; the device is held
		if err := r.RuntimeStarting(context.Background(), running("1", "a", "main")); err != nil {
			t.Fatal(err)
		}
		r.expectState(device.StateAssigned)
		r.releaser.holds("a", device.Release{})
		r.plugins.haunt("a")
		r.RuntimeStopped(running("1", "a", "main"))
		r.after(time.Minute)
		r.expect("b", "main", "waiting DeviceBusy")
		r.plugins.haunt()
		r.after(10 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// A command that fails to lift a cordon releases nothing.
func TestRelease_UncordonFails_DeviceStaysThePods(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(10 * time.Second)
		if _, err := r.Cordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
			t.Fatal(err)
		}
		r.disk.fails(func() {})
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err == nil {
			t.Error("no error")
		}
		r.disk.fails(nil)
		r.after(time.Minute)
		r.expect("b", "main", "waiting NotEnoughDevices") // it is cordoned, too
		if lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil || len(lifted) != 2 {
			t.Errorf("uncordoned %v, %v; want the cordon and the busy device", lifted, err)
		}
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// The pod was away from the API while devmgrd restarted: the failure of its release is forgotten with it.
func TestRelease_PodIsBackAfterARestart_FailureIsForgotten(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.after(10 * time.Second)
		r.releaser.holds("a", device.Release{})
		r.restart()
		r.plugins.stock(gpu, 1)
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// A proof that is under way is no sign of use: capacity does not change.
func TestRelease_ProofUnderWay_CountsInTheCapacity(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command is running", Underway: true})
		r.after(30 * time.Second)
		r.expectState(device.StateReleasing)
		r.published(map[device.ResourceName]int{gpu: 1})
		r.releaser.holds("a", device.Release{})
		r.after(0)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, gated)
}

// A device fails while a release is being written, and another proof changes: the failure is written, too.
func TestRelease_ProofChangesDuringAWrite_FallIsWritten(t *testing.T) {
	t.Parallel()
	lost := 0
	const n = 20
	for range n {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 3)
			r.RuntimeSynced(nil, nil)
			r.bind("y", app(gpu, 1))
			r.after(0)
			r.falls(2)
			r.releaser.holds("y", opener)
			r.Drop("y")
			r.after(time.Minute)
			r.plugins.stock(gpu, 3, 0)
			r.after(5 * time.Second)
			r.disk.isSlow(15 * time.Second)
			r.releaser.holds("y", device.Release{})
			r.after(10 * time.Second)
			r.releaser.holds("x", device.Release{}) // another proof changes
			r.after(time.Minute)
			if why, _ := r.suspendedDevice(); why == "" {
				lost++
			}
		}, gated, suspending)
	}
	if lost > 0 {
		t.Errorf("in %d of %d runs the third fall is neither on disk nor a suspension a minute later", lost, n)
	}
}

// An idle container starts between the proof and the commit.
func TestRelease_IdleContainerStartsBeforeTheCommit_ProofIsVoid(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.after(time.Minute)
		r.releaser.mu.Lock()
		delete(r.releaser.held, "a")
		r.releaser.mu.Unlock()
		r.ReleasedAfter(func() {
			if err := r.RuntimeStarting(context.Background(), idle); err != nil {
				t.Fatal(err)
			}
		})
		r.after(time.Minute)
		r.plugins.haunt("a")
		r.RuntimeStopped(idle)
		r.after(time.Second)
		if s := r.stands("b", "main"); s == "ready vendor.com/gpu[d0]" {
			t.Errorf("b has the device of a, which has a process")
		}
	}, gated)
}

// A container comes and goes between the proof and the commit.
func TestRelease_ContainerComesAndGoesBeforeTheCommit_ProofIsVoid(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.after(0)
		r.releaser.holds("a", opener)
		r.Drop("a")
		r.after(time.Minute)
		r.releaser.mu.Lock()
		delete(r.releaser.held, "a")
		r.releaser.mu.Unlock()
		got := r.ReleasedAfter(func() {
			r.RuntimeCreating(running("1", "a", "main"))
			r.plugins.haunt("a")
			r.RuntimeStopped(running("1", "a", "main"))
		})
		if len(got) > 0 {
			t.Errorf("released: %v", got)
		}
	}, gated)
}

// A failure that no longer counts is not on disk either.
func TestRelease_PodUsesItsDevicesAgain_FailureLeavesTheDisk(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.after(10 * time.Second)
		r.RuntimeCreating(running("2", "a", "main"))
		r.after(10 * time.Second)
		all, _ := r.store.State()
		for _, p := range all.Pods {
			if p.Demand.Pod.UID == "a" && p.ReleaseFailed != "" {
				t.Errorf("the state file still says %q", p.ReleaseFailed)
			}
		}
	}, gated)
}

// A process of the ended pod does not make up for the failure of the command.
func TestRelease_ProcessesOfTheEndedPod_FailureStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.after(10 * time.Second)
		r.restart()
		r.plugins.stock(gpu, 1)
		r.releaser.holds("a", device.Release{})
		r.plugins.haunt("a")
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.RuntimeSynced(nil, nil)
		r.after(10 * time.Second)
		r.plugins.haunt()
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
	}, gated)
}

// A busy device is listed under another ID after a reboot: it is missing from the capacity once.
func TestRelease_BusyDeviceIsRenamedByAReboot_CountsOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.boot = "1"
		r.halt()
		r.start()
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("k", app(gpu, 1))
		r.after(0)
		r.releaser.holds("a", device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.Drop("a")
		r.after(10 * time.Second)
		r.boot = "2"
		r.halt()
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.start()
		r.plugins.offer(gpu, func(o *device.Offer) {
			o.State, o.Reported = device.Serving, true
			o.Inventory = device.Inventory{Devices: []device.Device{{ID: "n0", Healthy: true, Added: 100}, {ID: "n1", Healthy: true, Added: 100}}}
		})
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.after(10 * time.Second)
		r.published(map[device.ResourceName]int{gpu: 2})
	}, gated)
}

// release.command has failed for the device before a reboot, the API server is away after it, and the plugin refuses the device.
func TestRelease_PodOfAFailedReleaseIsRecalledByAReboot_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.boot = "1"
		r.restart()
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.releaser.holds("a", device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.Drop("a")
		r.after(10 * time.Second)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.reboot()
		r.plugins.stock(gpu, 1)
		r.after(2 * time.Minute)
		r.plugins.answers(nil)
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
	}, gated)
}

// The commit fails while a container of the pod runs.
func TestRelease_ContainerDuringAFailingCommit_ProofIsVoid(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.after(10 * time.Second)
		once := false
		r.disk.fails(func() {
			if once {
				return
			}
			once = true
			r.RuntimeInjected(running("9", "a", "main")) // as of a container that a hook let through before the end
		})
		r.releaser.holds("a", device.Release{})
		r.after(10 * time.Second)
		r.disk.fails(nil)
		r.plugins.haunt("a")
		r.RuntimeStopped(running("9", "a", "main"))
		r.after(5 * time.Second)
		if s := r.stands("b", "main"); s == "ready vendor.com/gpu[d0]" {
			t.Errorf("b has the device of a, which has a process")
		}
	}, gated)
}
