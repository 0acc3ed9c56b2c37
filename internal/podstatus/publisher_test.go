package podstatus_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/podstatus"
)

const gpu = "vendor.example/gpu"

// A node is an API server in memory, and devmgrd's allocator, pods and publisher.
type node struct {
	t      *testing.T
	server *kubetest.Server
	*allocatortest.Allocator
	static    map[device.Pod]bool                               // the runtime has these static pods
	late      atomic.Pointer[map[device.PodUID]device.ShownPod] // what the watch has delivered so far; nil: all
	told      *notes
	publisher *podstatus.Publisher
	end       func()
	shown     func() map[device.PodUID]device.ShownPod
}

// run runs a test in fake time.
func run(t *testing.T, f func(*node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, server: kubetest.NewInMemory(t), static: map[device.Pod]bool{}}
		n.start(nil)
		f(n)
		n.end()
	})
}

// start starts devmgrd with what its state file has.
func (n *node) start(known []device.PodRecord) {
	n.told = &notes{last: map[string]string{}}
	n.Allocator = allocatortest.Start(n.t, n.t.TempDir(), func(c *allocator.Config) { c.Notifier, c.Known = n.told, known })
	all := pods.New(pods.Config{NodeName: "n1", Client: n.server.Client(), Sink: n.Allocator, Runtime: runtime{n.static}, Log: kubetest.Log(n.t)})
	n.publisher = podstatus.New(podstatus.Config{Client: n.server.Client(), View: n.Allocator, Pods: watched{all, n}, Log: kubetest.Log(n.t), Metrics: prometheus.NewRegistry()})
	ctx, cancel := context.WithCancel(n.t.Context())
	var work sync.WaitGroup
	work.Go(func() { _ = all.Run(ctx) })
	work.Go(func() { _ = n.publisher.Run(ctx) })
	n.end = func() { cancel(); work.Wait() }
	n.shown = all.Shown
	n.after(time.Second)
}

// restart kills devmgrd, and starts it again from its state file. Its plugins are stale until they list their devices again.
func (n *node) restart() {
	n.end()
	var known []device.PodRecord
	for _, p := range n.Snapshot().Pods {
		known = append(known, device.PodRecord{Demand: device.PodDemand{Pod: p.Pod, Demands: p.Demands, Containers: p.Containers}, Assignments: p.Assignments, Since: p.Since})
	}
	n.start(known)
}

// after lets time pass.
func (n *node) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// list has the plugin list three devices, of which some are unhealthy.
func (n *node) list(state device.OfferState, unhealthy ...int) {
	var all []device.Device
	for i := range 3 {
		all = append(all, device.Device{ID: device.ID(fmt.Sprint("d", i)), Healthy: !slices.Contains(unhealthy, i)})
	}
	n.Plugins.Offer(gpu, state, all...)
	synctest.Wait()
}

// create creates a pod that requests devices.
func (n *node) create(name string, devices int64, change ...func(*corev1.Pod)) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name + fmt.Sprint(time.Now().UnixNano()))},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{gpu: *resource.NewQuantity(devices, resource.DecimalSI)}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: "example.com/other", Status: "True"}}},
	}
	for _, f := range change {
		f(p)
	}
	n.server.Put(p)
	synctest.Wait()
}

// shows compares a pod's conditions: their types without the domain, status, reason and message.
func (n *node) shows(name string, want ...string) {
	n.t.Helper()
	var got []string
	p := n.server.Pod("ns", name)
	for _, c := range p.Status.Conditions {
		if of, is := strings.CutPrefix(string(c.Type), "devmgrd.io/"); is {
			got = append(got, strings.TrimSpace(fmt.Sprint(of, " ", c.Status, " ", c.Reason, " ", c.Message)))
		} else if c.Status != "True" {
			n.t.Errorf("another writer's condition is %+v", c)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		n.t.Errorf("pod %s shows %q, want %q", name, got, want)
	}
}

// writes compares how often conditions were written in all.
func (n *node) writes(want int) {
	n.t.Helper()
	if got := n.server.Requests("conditions"); got != want {
		n.t.Errorf("%d writes, want %d", got, want)
	}
}

const (
	oneGPU    = "DevicesAssigned True DevicesAssigned 1 " + gpu
	healthy   = "DevicesHealthy True DevicesHealthy"
	brokenGPU = "DevicesHealthy False DeviceUnhealthy device d0 of " + gpu + " is unhealthy"
)

// A watched is the pods as the watch has delivered them.
type watched struct {
	*pods.Pods
	node *node
}

func (w watched) Shown() map[device.PodUID]device.ShownPod {
	if late := w.node.late.Load(); late != nil {
		return *late
	}
	return w.Pods.Shown()
}

// A runtime has static pods.
type runtime struct{ static map[device.Pod]bool }

func (runtime) Has(device.PodUID) bool                    { return false }
func (r runtime) Static(p device.Pod) (shown, local bool) { return r.static[p], false }
func (runtime) Changed() <-chan struct{}                  { return nil }

// notes has the last event of each pod: its reason, and for a wait the message.
type notes struct {
	mu   sync.Mutex
	last map[string]string
}

func (n *notes) note(p device.Pod, text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last[p.Name] = text
}

func (n *notes) of(name string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last[name]
}

func (n *notes) Waiting(p device.Pod, w device.Wait)                                     { n.note(p, string(w.Reason)+" "+w.Message) }
func (n *notes) Assigned(p device.Pod, _ []device.Assignment)                            { n.note(p, "assigned") }
func (n *notes) Failed(p device.Pod, _ device.ResourceName, _ []device.ID)               { n.note(p, "failed") }
func (n *notes) StartedWithoutDevices(device.Pod, string, func() bool)                   {}
func (n *notes) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool)   {}
func (n *notes) DeviceRefused(device.ResourceName, device.ID, string)                    {}
func (n *notes) GivenUp(p device.Pod, w device.Wait, _ time.Duration, still func() bool) {}

// A pod waits, is assigned a device, and the device fails and recovers: one write for each change, and none at rest.
func TestConditions_DeviceFails_FalseAtOnceAndTrueAfterRecovery(t *testing.T) {
	run(t, func(n *node) {
		n.create("a", 1)
		n.after(4 * time.Second)
		n.writes(0) // the wait may soon be over
		n.after(2 * time.Second)
		n.shows("a", "DevicesAssigned False "+n.told.of("a"))
		if !strings.HasPrefix(n.told.of("a"), "PluginMissing ") {
			t.Errorf("the event is %q", n.told.of("a"))
		}
		n.list(device.Serving)
		n.after(time.Second)
		n.shows("a", oneGPU, healthy)
		n.writes(2)
		n.after(time.Hour)
		n.writes(2)

		n.list(device.Serving, 0, 2)
		n.after(200 * time.Millisecond)
		n.shows("a", oneGPU, brokenGPU)
		if n.told.of("a") != "failed" {
			t.Errorf("the event is %q", n.told.of("a"))
		}
		n.after(time.Hour) // for longer than the recovery: it must not be true for a moment
		n.list(device.Serving, 2)
		n.after(29 * time.Second)
		n.shows("a", oneGPU, brokenGPU)
		n.writes(3)
		n.after(2 * time.Second)
		n.shows("a", oneGPU, healthy)
		n.writes(4)
	})
}

// A failure that is over before the publisher looks is shown, since the event has told of it. A device that flaps stays unhealthy.
func TestConditions_DeviceFlaps_StaysFalse(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Second)
		n.writes(1)
		n.list(device.Serving, 2) // the publisher has just looked, and rests
		n.list(device.Serving, 0)
		n.list(device.Serving)
		n.after(time.Second)
		n.shows("a", oneGPU, brokenGPU)
		for range 20 {
			n.list(device.Serving, 0)
			n.after(5 * time.Second)
			n.list(device.Serving)
			n.after(20 * time.Second)
			n.shows("a", oneGPU, brokenGPU)
		}
		n.writes(2)
		n.after(11 * time.Second)
		n.shows("a", oneGPU, healthy)
		n.writes(3)
	})
}

// The plugin is lost and returns. While the plugin is only stale nothing is known, and nothing changes.
func TestConditions_PluginLost_False(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Second)
		n.list(device.Stale)
		n.after(time.Minute)
		n.writes(1)
		n.list(device.Lost)
		n.after(time.Second)
		n.shows("a", oneGPU, "DevicesHealthy False PluginLost the device plugin of "+gpu+" has been away for longer than its grace period")
		n.list(device.Serving)
		n.after(20 * time.Second)
		n.list(device.Stale) // the 30 s begin again
		n.after(time.Minute)
		n.list(device.Serving)
		n.after(29 * time.Second)
		n.writes(2)
		n.after(2 * time.Second)
		n.shows("a", oneGPU, healthy)
		n.writes(3)
	})
}

// After a restart nothing is written, whatever the pods show, until something has changed.
func TestConditions_Restart_NoWrite(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.create("b", 1)
		n.create("c", 2)
		n.after(10 * time.Second)
		n.list(device.Serving, 0)
		n.after(time.Second)
		n.writes(4)
		waits := "DevicesAssigned False " + n.told.of("c")
		n.shows("c", waits)
		n.restart()
		n.after(time.Second)
		n.list(device.Stale, 0)
		n.after(3 * time.Second)
		n.list(device.Serving, 0)
		n.after(time.Hour)
		n.writes(4)
		n.shows("a", oneGPU, brokenGPU)
		n.shows("b", oneGPU, healthy)
		n.list(device.Serving)
		n.after(31 * time.Second)
		n.shows("a", oneGPU, healthy)
		n.writes(5)
	})
}

// Another writer's change is put right, at a bounded rate.
func TestConditions_AnotherWriter_IsOverruledAtABoundedRate(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Minute)
		n.writes(1)
		for range 10 * 60 {
			p := n.server.Pod("ns", "a")
			p.Status.Conditions = []corev1.PodCondition{{Type: "example.com/other", Status: "True"}, {Type: device.DevicesHealthy, Status: "False", Reason: "Lie", Message: strings.Repeat("x", 2000)}}
			n.server.Put(p)
			n.after(time.Second)
		}
		if got := n.server.Requests("conditions"); got < 30 || got > 37 {
			t.Errorf("%d writes in 10 minutes, want some 36", got)
		}
		n.after(time.Minute)
		n.shows("a", oneGPU, healthy)
	})
}

// A pod that is deleted, has ended or is replaced by one of the same name gets no write meant for another state of it.
func TestConditions_PodLeaves_NoWrite(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.create("b", 1)
		n.after(time.Second)
		n.writes(2)
		p := n.server.Pod("ns", "a")
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		n.server.Put(p)
		p = n.server.Pod("ns", "b")
		p.Status.Phase = corev1.PodSucceeded
		n.server.Put(p)
		synctest.Wait()
		n.list(device.Serving, 0, 1)
		n.after(time.Hour)
		n.writes(2)
	})
}

// The API server has another pod of that name already: the UID in the patch keeps it from being written to.
func TestConditions_PodReplaced_NewPodIsNotWritten(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Second)
		var once sync.Once
		conflicts := 0
		n.server.Refuse(func(verb, path string) int {
			if verb == "conditions" {
				once.Do(func() {
					p := n.server.Pod("ns", "a")
					p.UID, p.Status.Conditions = "another", nil
					n.server.Put(p) // no event of the first pod's end has arrived yet
				})
				conflicts++
			}
			return 0
		})
		n.list(device.Serving, 0)
		n.after(time.Second)
		n.server.Refuse(nil)
		for _, c := range n.server.Pod("ns", "a").Status.Conditions {
			if strings.Contains(c.Message, "d0") {
				t.Errorf("the new pod has the former one's condition %+v", c)
			}
		}
		if conflicts == 0 {
			t.Error("nothing was written")
		}
	})
}

// Without the right the status says so, attempts are rare, and all is written once the right is there.
func TestConditions_Forbidden_NoteAndSlowRetries(t *testing.T) {
	run(t, func(n *node) {
		attempts := 0
		n.server.Refuse(func(verb, _ string) int {
			if verb != "conditions" {
				return 0
			}
			attempts++
			return http.StatusForbidden
		})
		n.list(device.Serving)
		for i := range 3 {
			n.create(fmt.Sprint("p", i), 1)
		}
		n.after(10 * time.Minute)
		if attempts < 10 || attempts > 40 {
			t.Errorf("%d attempts in 10 minutes", attempts)
		}
		if l := n.publisher.Limits(); len(l) != 1 || !strings.Contains(l[0].Text, "pods/status") {
			t.Errorf("the limits are %+v", l)
		}
		n.server.Refuse(nil)
		n.after(2 * time.Minute)
		for i := range 3 {
			n.shows(fmt.Sprint("p", i), oneGPU, healthy)
		}
		if l := n.publisher.Limits(); l != nil {
			t.Errorf("the limits are %+v", l)
		}
	})
}

// A pod whose status the API server refuses, such as by a policy, delays no other pod, and is no sign of a missing right.
func TestConditions_OnePodRefused_OthersAreWritten(t *testing.T) {
	for _, code := range []int{http.StatusInternalServerError, http.StatusUnprocessableEntity, http.StatusForbidden} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			run(t, func(n *node) {
				attempts := 0
				n.server.Refuse(func(verb, path string) int {
					if verb != "conditions" || !strings.Contains(path, "pods/bad") {
						return 0
					}
					attempts++
					return code
				})
				n.list(device.Serving)
				n.create("a", 1)
				n.after(time.Second)
				n.create("bad", 1)
				n.after(time.Hour)
				if attempts < 30 || attempts > 100 {
					t.Errorf("%d attempts in an hour", attempts)
				}
				n.list(device.Serving, 0)
				n.after(time.Second)
				n.shows("a", oneGPU, brokenGPU)
				if l := n.publisher.Limits(); l != nil {
					t.Errorf("the limits are %+v", l)
				}
			})
		})
	}
}

// New pods, five a second, do not delay the pod whose device fails.
func TestConditions_ManyNewPods_OlderPodIsWritten(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("quiet", 3)
		n.after(time.Minute)
		i := 0
		churn := func() {
			n.create(fmt.Sprint("w", i), 1)
			if i >= 40 {
				n.server.Delete(fmt.Sprint("namespaces/ns/pods/w", i-40))
			}
			n.after(170 * time.Millisecond)
			i++
		}
		for i < 220 { // the writes in one go are used up
			churn()
		}
		n.list(device.Serving, 0)
		for range 60 {
			churn()
		}
		for _, c := range n.server.Pod("ns", "quiet").Status.Conditions {
			if string(c.Type) == device.DevicesHealthy && c.Status != "False" {
				t.Errorf("after 10 s the condition is %+v", c)
			}
		}
	})
}

// A plugin's error need not be UTF-8; the API server stores nothing else.
func TestConditions_TextIsNoUTF8_OneWrite(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.Plugins.Answer(func(context.Context) error { return errors.New("firmware \xff\xfe says no") })
		n.create("a", 1)
		n.after(10 * time.Minute)
		before := n.server.Requests("conditions")
		n.after(time.Hour)
		if n.server.Requests("conditions") != before {
			t.Errorf("%d writes in an hour without a change", n.server.Requests("conditions")-before)
		}
	})
}

// An outage: nothing is asked meanwhile, and afterwards only the last state is written.
func TestConditions_APIServerAway_LastStateFollows(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Second)
		n.server.Refuse(func(verb, _ string) int {
			if verb == "conditions" {
				return http.StatusServiceUnavailable
			}
			return 0
		})
		n.list(device.Serving, 0)
		n.after(5 * time.Minute)
		n.list(device.Serving)
		n.after(5 * time.Minute)
		before := n.server.Requests("conditions")
		n.server.Refuse(nil)
		n.after(5 * time.Minute)
		n.shows("a", oneGPU, healthy)
		if got := n.server.Requests("conditions"); got != before {
			t.Errorf("%d writes after the outage, want none", got-before)
		}
	})
}

// 150 pods whose devices fail all the time: the sum is limited, each pod has its turn, and a quiet pod does not wait for the others.
func TestConditions_ManyPodsChange_SumIsLimitedAndQuietPodIsFirst(t *testing.T) {
	run(t, func(n *node) {
		const many = 150
		devices := make([]device.Device, many+1)
		list := func(healthy, quiets bool) {
			all := slices.Clone(devices)
			for i := range all {
				all[i] = device.Device{ID: device.ID(fmt.Sprintf("d%03d", i)), Healthy: healthy}
			}
			all[0].Healthy = quiets
			n.Plugins.Offer(gpu, device.Serving, all...)
			synctest.Wait()
		}
		list(true, true)
		n.create("quiet", 1)
		n.after(time.Minute) // it is written to before all others
		for i := range many {
			n.create(fmt.Sprintf("p%03d", i), 1)
		}
		n.after(5 * time.Minute)
		n.writes(many + 1)
		quiet, _ := n.Snapshot().Pod("ns", "quiet")
		if id := quiet.Assignments[0].Shares[0].IDs[0]; id != "d000" {
			t.Fatalf("the quiet pod has %s", id)
		}
		began := time.Now()
		list(false, true)
		n.after(15 * time.Second) // what may be written in one go is used up
		if got := n.server.Requests("conditions") - many - 1; got < 100 || got > 135 {
			t.Errorf("%d writes in 15 s, want some 130 of %d", got, many)
		}
		list(false, false)
		n.after(time.Second)
		n.shows("quiet", oneGPU, "DevicesHealthy False DeviceUnhealthy device d000 of "+gpu+" is unhealthy")
		for range 30 {
			list(true, false)
			n.after(50 * time.Second)
			list(false, false)
			n.after(10 * time.Second)
		}
		got, most := n.server.Requests("conditions")-many-1, 100+2*int(time.Since(began)/time.Second)
		if got > most || got < most/2 {
			t.Errorf("%d writes in %v, want up to %d", got, time.Since(began), most)
		}
		list(true, true)
		n.after(10 * time.Minute)
		for i := range many {
			n.shows(fmt.Sprintf("p%03d", i), oneGPU, healthy)
		}
		written := n.server.Requests("conditions")
		n.after(time.Hour)
		n.writes(written)
	})
}

// A static pod's conditions are on its mirror pod, which has a UID of its own. A forged mirror has none.
func TestConditions_StaticPod_OnItsMirror(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		mirror := func(name, hash string) {
			n.create(name, 1, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hash} })
			n.after(10 * time.Second)
		}
		hash := strings.Repeat("a", 32)
		n.static[device.Pod{UID: device.PodUID(hash), Namespace: "ns", Name: "static"}] = true
		mirror("static", hash)
		n.shows("static", oneGPU, healthy)
		mirror("forged", strings.Repeat("b", 32))
		n.shows("forged")
	})
}

// A device that the pod before has had broken does not make the next pod unhealthy. Two pods that wait for one device have an event and a condition each.
func TestConditions_NextPodOfADevice_IsHealthy(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving, 1, 2)
		n.create("a", 1)
		n.create("b", 1)
		n.after(10 * time.Second)
		n.shows("a", oneGPU, healthy)
		n.shows("b", "DevicesAssigned False "+n.told.of("b"))
		n.list(device.Serving, 0, 1, 2)
		n.after(time.Second)
		n.shows("a", oneGPU, brokenGPU)
		n.server.Delete("namespaces/ns/pods/a")
		n.after(2 * time.Second)
		n.list(device.Serving, 1, 2)
		n.after(5 * time.Second)
		n.shows("b", oneGPU, healthy)
	})
}

// A wait that ends soon, and one in which only the number of free devices changes, are not written.
func TestConditions_ShortWait_NoWrite(t *testing.T) {
	run(t, func(n *node) {
		n.create("a", 1)
		n.after(4 * time.Second)
		n.list(device.Serving)
		n.after(time.Second)
		n.shows("a", oneGPU, healthy)
		n.create("b", 3)
		n.after(10 * time.Second)
		n.writes(2)
		for i := range 20 {
			n.create(fmt.Sprint("p", i), 1)
			n.after(10 * time.Second)
			n.server.Delete(fmt.Sprint("namespaces/ns/pods/p", i))
			n.after(20 * time.Second)
		}
		n.writes(2 + 20)
	})
}

// The watch brings the result of a write late: the write is not repeated.
func TestConditions_WatchIsLate_OneWrite(t *testing.T) {
	run(t, func(n *node) {
		n.list(device.Serving)
		n.create("a", 1)
		n.after(time.Second)
		before := n.shown()
		n.late.Store(&before)
		n.list(device.Serving, 0)
		n.after(30 * time.Second)
		n.writes(2)
		n.late.Store(nil)
		n.after(time.Minute)
		n.writes(2)
		n.shows("a", oneGPU, brokenGPU)
	})
}
