package pods

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// follow runs Pods for node n1 until the test ends.
func follow(t *testing.T, api *kubetest.Server) (*Pods, *diary) {
	t.Helper()
	d := newDiary()
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: d, Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not end with its context")
		}
	})
	return p, d
}

func untilHas(t *testing.T, d *diary, want string) {
	t.Helper()
	kubetest.Until(t, "the sink has "+want, func() bool { return d.has() == want })
}

func untilInSync(t *testing.T, p *Pods) {
	t.Helper()
	kubetest.Until(t, "in sync", func() bool { return p.Check() == nil })
}

func TestFollowsThePodsOfTheNode(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*kubetest.Server){
		"streamed list": func(*kubetest.Server) {},
		"plain list":    (*kubetest.Server).PlainLists,
	} {
		t.Run(name, func(t *testing.T) {
			api := kubetest.New(t)
			prepare(api)
			elsewhere := at("x", 0)
			elsewhere.Spec.NodeName = "n2"
			api.Put(elsewhere)
			api.Put(at("a", 0))
			p, d := follow(t, api)
			untilHas(t, d, "a")
			untilInSync(t, p)
			api.Put(at("b", 0, "Pending"))
			untilHas(t, d, "a b")
			api.Put(at("b", 0, "Succeeded"))
			untilHas(t, d, "a")
			api.Delete("namespaces/ns/pods/a")
			untilHas(t, d, "")
			// A pod recreated under the same name is another pod.
			again := at("a", 0)
			again.UID = types.UID("a2")
			api.Put(again)
			untilHas(t, d, "a2")
		})
	}
}

func TestServerAwayAtStart(t *testing.T) {
	t.Parallel()
	api := kubetest.NewAway(t)
	api.Put(at("a", 0))
	p, d := follow(t, api)
	kubetest.Until(t, "an attempt has failed", func() bool { return errors.Is(p.Check(), syscall.ECONNREFUSED) })
	api.Start()
	untilHas(t, d, "a")
	untilInSync(t, p)
}

func TestDeletedWhileAway(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(at("a", 0))
	api.Put(at("b", 0))
	p, d := follow(t, api)
	untilHas(t, d, "a b")
	untilInSync(t, p)
	api.Stop()
	kubetest.Until(t, "the loss is noticed", func() bool { return p.Check() != nil })
	api.Delete("namespaces/ns/pods/a")
	api.Put(at("c", 0))
	if got := d.has(); got != "a b" {
		t.Errorf("without an API server the sink has %q", got)
	}
	api.Start()
	untilHas(t, d, "b c")
	untilInSync(t, p)
}

func TestHistoryIsGone(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*kubetest.Server){
		"streamed list": func(*kubetest.Server) {},
		"plain list":    (*kubetest.Server).PlainLists,
	} {
		t.Run(name, func(t *testing.T) {
			api := kubetest.New(t)
			prepare(api)
			api.Put(at("a", 0))
			p, d := follow(t, api)
			untilHas(t, d, "a")
			untilInSync(t, p)
			api.Stop()
			api.Delete("namespaces/ns/pods/a")
			api.Put(at("b", 0))
			api.Forget()
			api.Start()
			untilHas(t, d, "b")
			untilInSync(t, p)
		})
	}
}

// TestNoBusyLoop counts the attempts against a server that refuses everything.
func TestNoBusyLoop(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Refuse(func(string, string) int { return http.StatusForbidden })
	start := time.Now()
	p, _ := follow(t, api)
	kubetest.Until(t, "some attempts", func() bool { return api.Requests("watch") >= 4 })
	if took := time.Since(start); took < (50+100+200)*time.Millisecond {
		t.Errorf("four attempts in %v", took)
	}
	if p.Check() == nil {
		t.Error("in sync with a server that refuses")
	}
}

func TestFetch(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	elsewhere := at("x", 0)
	elsewhere.Spec.NodeName = "n2"
	api.Put(elsewhere)
	api.Put(at("a", 0))
	api.Put(at("done", 0, "Failed"))
	api.Put(at("static", 0, "mirror", "Failed")) // its static pod runs again
	d := newDiary()
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: d, Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)}) // the watch does not run
	pod := func(name string) device.Pod {
		return device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name}
	}
	for _, c := range []struct {
		pod  device.Pod
		want error
	}{
		{pod("a"), nil},
		{pod("a"), nil},
		{pod("b"), ErrNotFound},
		{pod("x"), ErrNotFound},
		{pod("done"), ErrNotFound},
		{device.Pod{UID: device.PodUID(hashOf("static")), Namespace: "ns", Name: "static"}, nil},
		{device.Pod{UID: "other life", Namespace: "ns", Name: "a"}, ErrNotFound},
	} {
		if err := p.Fetch(t.Context(), c.pod); !errors.Is(err, c.want) || (c.want == nil && err != nil) {
			t.Errorf("%+v: got %v, want %v", c.pod, err, c.want)
		}
	}
	if got, want := d.said(), []string{"bind a", "bind " + hashOf("static")}; !slices.Equal(got, want) {
		t.Errorf("the sink heard %q, want %q", got, want)
	}
	if n := api.Requests("get"); n != 6 {
		t.Errorf("%d reads; a known pod needs none", n)
	}
	api.Stop()
	if err := p.Fetch(t.Context(), pod("c")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without an API server: %v", err)
	}
	api.Start()
	api.Refuse(func(verb, _ string) int { return http.StatusForbidden })
	if err := p.Fetch(t.Context(), pod("c")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("forbidden: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Fetch(ended, pod("c")); !errors.Is(err, ErrUnavailable) {
		t.Errorf("out of time: %v", err)
	}
}

// A pod that is known by its name alone.
func TestFind(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	elsewhere := at("x", 0)
	elsewhere.Spec.NodeName = "n2"
	api.Put(elsewhere)
	api.Put(at("a", 0))
	api.Put(at("done", 0, "Failed"))
	api.Put(at("static", 0, "mirror", "Failed"))
	d := newDiary()
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: d, Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)}) // the watch does not run
	for name, want := range map[string]bool{"a": true, "b": false, "x": false, "done": false, "static": false} {
		if known, err := p.Find(t.Context(), "ns", name); known != want || err != nil {
			t.Errorf("%s: %v, %v, want %v", name, known, err, want)
		}
	}
	if got, want := d.said(), []string{"bind a"}; !slices.Equal(got, want) {
		t.Errorf("the sink heard %q, want %q", got, want)
	}
	api.Stop()
	if _, err := p.Find(t.Context(), "ns", "c"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without an API server: %v", err)
	}
}

// With the kubelet's credentials the API server forbids to read a pod that is not bound to this node. devmgrd explain shows the error.
func TestEnded_PodNotBoundToThisNode_ErrorSaysWhereToLook(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Refuse(func(string, string) int { return http.StatusForbidden })
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: newDiary(), Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)})
	_, _, err := p.Ended(t.Context(), "ns", "a")
	if !errors.Is(err, ErrUnavailable) || !apierrors.IsForbidden(err) {
		t.Errorf("%v, want an error that is both unavailable and forbidden", err)
	}
	for _, text := range []string{"reading pod ns/a", "bound to this node", "kubectl -n ns get pod a -o wide", "refused by the test"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	if strings.Contains(err.Error(), ErrUnavailable.Error()) {
		t.Errorf("%q says that the API server is unavailable, which has answered", err)
	}
}

func TestEnded(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	elsewhere := at("x", 0, "Failed")
	elsewhere.Spec.NodeName = "n2"
	api.Put(elsewhere)
	api.Put(at("runs", 0, "Running"))
	api.Put(at("done", 0, "Succeeded"))
	began := metav1.Unix(1000, 0)
	failed := func(name, reason string, containers ...corev1.ContainerStatus) {
		pod := at(name, 0, "Failed")
		pod.Status.StartTime, pod.Status.Reason, pod.Status.Message, pod.Status.ContainerStatuses = &began, reason, "why", containers
		api.Put(pod)
	}
	failed("refused", "OutOfvendor.com/gpu")
	failed("evicted", "Evicted", corev1.ContainerStatus{Name: "main"})
	failed("collected", "")
	tainted := at("tainted", 0, "Failed")
	tainted.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "DeletionByDeviceTaintManager", Message: "deleting due to device taint",
	}}
	api.Put(tainted)
	leaving := at("leaving", 0, "Pending")
	leaving.DeletionTimestamp = &began
	api.Put(leaving)
	stuck := at("stuck", 0, "Pending")
	stuck.Spec.RestartPolicy = corev1.RestartPolicyNever
	stuck.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}
	stuck.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	api.Put(stuck)
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: newDiary(), Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)})
	pod := func(name string) device.Pod {
		return device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name}
	}
	for name, want := range map[string]*device.EndedPod{
		"none": nil, "x": nil, "runs": nil,
		"done":      {Pod: pod("done")},
		"refused":   {Pod: pod("refused"), Failed: true, Refused: true, At: began.Time, Reason: "OutOfvendor.com/gpu", Message: "why"},
		"evicted":   {Pod: pod("evicted"), Failed: true, Reason: "Evicted", Message: "why"},
		"collected": {Pod: pod("collected"), Failed: true, Message: "why"},
		"leaving":   {Pod: pod("leaving"), Leaving: true, Message: "it is being deleted"},
		"stuck":     {Pod: pod("stuck"), Leaving: true, Message: "its sandbox is gone and its restartPolicy is Never; delete the pod"},
		"tainted":   {Pod: pod("tainted"), Failed: true, Reason: "DeletionByDeviceTaintManager", Message: "deleting due to device taint"},
	} {
		got, found, err := p.Ended(t.Context(), "ns", name)
		if !got.At.IsZero() {
			got.At = got.At.Local() // as began is
		}
		if err != nil || found != (want != nil) || found && got != *want {
			t.Errorf("%s: %+v, %v, %v, want %+v", name, got, found, err, want)
		}
	}
	api.Stop()
	if _, _, err := p.Ended(t.Context(), "ns", "refused"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without an API server: %v", err)
	}
}

// busy is a Sink that takes no pod before it is released.
type busy struct {
	*diary
	asked, released chan struct{}
}

func (b busy) Bind(d device.PodDemand) {
	b.asked <- struct{}{}
	<-b.released
	b.diary.Bind(d)
}

// A hook has little time, and the Sink may be busy with another pod.
func TestFetch_SinkIsBusy_ReturnsInTime(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(at("new", 0))
	sink := busy{newDiary(), make(chan struct{}), make(chan struct{})}
	p := New(Config{NodeName: "n1", Client: api.Client(), Sink: sink, Runtime: &sandboxes{all: true}, Log: kubetest.Log(t)})
	go p.store.Update(at("other", 0))
	<-sink.asked
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	pod := device.Pod{UID: "new", Namespace: "ns", Name: "new"}
	if err := p.Fetch(ctx, pod); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
	close(sink.released)
	go func() { <-sink.asked }()
	if err := p.Fetch(t.Context(), pod); err != nil || !p.store.knows(pod) {
		t.Error(err)
	}
}
