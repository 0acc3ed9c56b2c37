package pods

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
)

var born = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// container makes a container with limits, given as name, amount, name, amount...
func container(name string, limits ...string) corev1.Container {
	c := corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for i := 0; i < len(limits); i += 2 {
		c.Resources.Limits[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	return c
}

// newPod makes an active pod on node n1, with its name as UID.
func newPod(name string, containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(born)},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: containers},
	}
}

// Of a pod that is being deleted, or that is never restarted and has lost its sandbox, the kubelet starts no further container.
func TestLeaving(t *testing.T) {
	t.Parallel()
	now := metav1.NewTime(born)
	unready := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse}}
	}
	never := func(p *corev1.Pod) { p.Spec.RestartPolicy = corev1.RestartPolicyNever }
	ran := func(p *corev1.Pod) {
		p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}}
	}
	deleted := func(p *corev1.Pod) { p.DeletionTimestamp = &now }
	mirror := func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(p.Name)}
	}
	for name, c := range map[string]struct {
		edits []func(*corev1.Pod)
		want  bool
	}{
		"runs":                        {[]func(*corev1.Pod){never, ran}, false},
		"deleted":                     {[]func(*corev1.Pod){deleted}, true},
		"mirror, deleted":             {[]func(*corev1.Pod){deleted, mirror}, false},
		"never, sandbox lost":         {[]func(*corev1.Pod){never, ran, unready}, true},
		"never, none started":         {[]func(*corev1.Pod){never, unready}, false},
		"restarted, sandbox lost":     {[]func(*corev1.Pod){ran, unready}, false},
		"static, never, sandbox lost": {[]func(*corev1.Pod){never, ran, unready, mirror}, false},
	} {
		p := newPod("a", container("main", "a.example/gpu", "1"))
		for _, edit := range c.edits {
			edit(p)
		}
		if seen, _ := (reader{}).pod(p); seen.demand.Leaving != c.want || seen.ended {
			t.Errorf("%s: leaving %v, ended %v", name, seen.demand.Leaving, seen.ended)
		}
	}
}

func TestDemands(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	full := newPod("full", container("b", "a.example/gpu", "2", "cpu", "1"), container("a", "a.example/gpu", "1", "b.example/nic", "3"))
	full.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "Z"}, {Name: "A"}, {Name: "Z"}}
	sidecar := container("side", "a.example/gpu", "1")
	sidecar.RestartPolicy = &always
	full.Spec.InitContainers = []corev1.Container{container("setup", "a.example/gpu", "4"), sidecar, container("plain")}
	full.Spec.Overhead = corev1.ResourceList{"a.example/gpu": resource.MustParse("9")}
	full.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(container("debug", "a.example/gpu", "1"))}}

	claim := newPod("claim", container("a", "a.example/gpu", "2", "b.example/nic", "1"), container("b", "a.example/gpu", "1"))
	claim.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "a", ResourceName: "a.example/gpu", RequestName: "r0"}}}

	want := func(pod, name string, kind device.Kind, wants map[device.ResourceName]int, env ...string) device.Demand {
		return device.Demand{Container: device.Container{Pod: device.PodUID(pod), Name: name}, Kind: kind, Wants: wants, Env: env}
	}
	for _, c := range []struct {
		pod    *corev1.Pod
		beside string // all that run until the pod ends
		want   []device.Demand
	}{
		{newPod("none", container("a"), container("b", "cpu", "1", "memory", "1Gi", "hugepages-2Mi", "4Mi")), "a b", nil},
		{newPod("native", container("a", "kubernetes.io/x", "1", "x.kubernetes.io/y", "1", "requests.a.example/gpu", "1")), "a", nil},
		{newPod("zero", container("a", "a.example/gpu", "0")), "a", nil},
		// What cannot be had is asked for all the same: the pod waits.
		{newPod("many", container("a", "a.example/gpu", "9223372036854775807"), container("b", "a.example/gpu", "90E"), container("c", "a.example/gpu", "2147483648")), "a b c", []device.Demand{
			want("many", "a", device.App, map[device.ResourceName]int{"a.example/gpu": math.MaxInt32}),
			want("many", "b", device.App, map[device.ResourceName]int{"a.example/gpu": math.MaxInt32}),
			want("many", "c", device.App, map[device.ResourceName]int{"a.example/gpu": math.MaxInt32}),
		}},
		{newPod("ignored", container("a", "lic.example/seat", "1", "all.example/one", "1", "all.example/two", "2")), "a", nil},
		{newPod("partly", container("a", "lic.example/seat", "1", "lic.example/other", "2")), "a", []device.Demand{
			want("partly", "a", device.App, map[device.ResourceName]int{"lic.example/other": 2})}},
		{full, "side b a", []device.Demand{
			want("full", "setup", device.Init, map[device.ResourceName]int{"a.example/gpu": 4}),
			want("full", "side", device.Sidecar, map[device.ResourceName]int{"a.example/gpu": 1}),
			want("full", "b", device.App, map[device.ResourceName]int{"a.example/gpu": 2}, "A", "Z"),
			want("full", "a", device.App, map[device.ResourceName]int{"a.example/gpu": 1, "b.example/nic": 3}),
		}},
		{claim, "a b", []device.Demand{
			want("claim", "a", device.App, map[device.ResourceName]int{"b.example/nic": 1}),
			want("claim", "b", device.App, map[device.ResourceName]int{"a.example/gpu": 1}),
		}},
	} {
		r := reader{ignored: ignoring([]string{"lic.example/seat", "all.example/*"})}
		seen, ok := r.pod(c.pod)
		name := c.pod.Name
		head := device.PodDemand{Pod: device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name}, Created: born, Demands: c.want, Containers: strings.Fields(c.beside), Sidecars: strings.Count(c.beside, "side")}
		if !ok || seen.ended || seen.node != "n1" || !reflect.DeepEqual(seen.demand, head) {
			t.Errorf("%s: got %+v\nwant %+v", name, seen, head)
		}
	}
}

// Which $(NAME) in arguments are a plugin's to define.
func TestReferences(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args string
		want []string
	}{
		{"--a=$(B) $(A)$(A)", []string{"A", "B"}},
		{"$(OWN) $NAME ${NAME} $() $(open", nil},
		{"$$(A) $(B)", []string{"B"}},
		{"$$$(A)", []string{"A"}},
		{"$$(A) $(A)", nil},
		{"", nil},
	} {
		got := references(&corev1.Container{Args: []string{"x", c.args}}, []string{"OTHER", "OWN"}, &room{maxPodSize})
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q, want %q", c.args, got, c.want)
		}
	}
}

// Which UID a pod has for the runtime. A mirror's annotation can say anything.
func TestMirrors(t *testing.T) {
	t.Parallel()
	const hash = "0123456789abcdef0123456789abcdef"
	for says, want := range map[string]device.PodUID{
		hash:                                   hash,
		"":                                     "own",
		"mirror":                               "own",
		"0123456789ABCDEF0123456789ABCDEF":     "own",
		hash + "0":                             "own",
		hash + "\n":                            "own",
		"1fd9b4f3-7f7e-4a3e-9d55-6e1f2f0a7c11": "own", // a pod of the API server's
	} {
		p := newPod("own", container("c", "a.example/gpu", "1"))
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: says}
		seen, _ := reader{}.pod(p)
		gone, _, _ := reader{}.deleted(p)
		if seen.demand.Pod.UID != want || seen.demand.Demands[0].Container.Pod != want || gone != seen.demand.Pod || seen.demand.Mirror {
			t.Errorf("%q: the pod is %+v, and deleted %+v", says, seen, gone)
		}
		p.Annotations[resourcesKey] = "{}"
		seen, _ = reader{}.pod(p)
		gone, _, _ = reader{}.deleted(p)
		if !seen.demand.Mirror || seen.demand.Pod.UID != want || gone != seen.demand.Pod {
			t.Errorf("%q, and the runtime tells of it: the pod is %+v, and deleted %+v", says, seen, gone)
		}
	}
}

func TestPhases(t *testing.T) {
	t.Parallel()
	for phase, ended := range map[corev1.PodPhase]bool{
		corev1.PodPending: false, corev1.PodRunning: false, corev1.PodUnknown: false, corev1.PodSucceeded: true, corev1.PodFailed: true,
	} {
		p := newPod("p")
		p.Status.Phase = phase
		p.DeletionTimestamp = &metav1.Time{Time: born} // a terminating pod counts like any other
		if seen, _ := (reader{}).pod(p); seen.ended != ended {
			t.Errorf("%s: ended is %v", phase, seen.ended)
		}
	}
}

// A kubelet that has just started writes the start time of a pod that it rejects up to 10 s before the pod's phase.
func TestPod_StartTimeWithoutContainers_IsNotAdmitted(t *testing.T) {
	t.Parallel()
	p := newPod("a", container("main", "a.example/gpu", "1"))
	started := metav1.NewTime(born)
	for _, step := range []struct {
		change   func()
		admitted bool
	}{
		{func() {}, false},
		{func() { p.Status.StartTime = &started }, false},
		{func() { p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main"}} }, true},
		{func() { p.Status.StartTime = nil }, false},
		{func() { p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{} }, false}, // for another resource
		{func() { // the scheduler has chosen its devices
			p.Status.ExtendedResourceClaimStatus.RequestMappings = []corev1.ContainerExtendedResourceRequest{{ContainerName: "main", ResourceName: "a.example/gpu"}}
		}, true},
	} {
		step.change()
		if s, _ := (reader{}).pod(p); s.demand.Admitted != step.admitted {
			t.Errorf("a pod with status %+v counts as admitted: %v", p.Status, s.demand.Admitted)
		}
	}
}

// The scheduler has made a claim for the extended resources of a container: by the name that the class has, and by the class's implicit one, which is
// no plugin's resource.
func TestClaimsOf_ExtendedResources_BothNamesLeadToTheClaim(t *testing.T) {
	t.Parallel()
	const implicit = "deviceclass.resource.kubernetes.io/a.example-gpu"
	p := newPod("p", container("a", "a.example/gpu", "1", implicit, "2"), container("b", implicit, "1"), container("c"))
	p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
		{ContainerName: "a", ResourceName: "a.example/gpu", RequestName: "r0"},
		{ContainerName: "a", ResourceName: implicit, RequestName: "r1"},
		{ContainerName: "b", ResourceName: implicit, RequestName: "r2"},
	}}
	want := map[string][]device.ClaimUse{
		"a": {{Claim: "made", Request: "r0", Resource: "a.example/gpu"}, {Claim: "made", Request: "r1"}},
		"b": {{Claim: "made", Request: "r2"}},
	}
	seen, _ := reader{claims: true}.pod(p)
	if !seen.demand.Admitted {
		t.Error("the kubelet might reject the pod")
	}
	got := map[string][]device.ClaimUse{}
	for _, d := range seen.demand.Demands {
		got[d.Container.Name] = d.Claims
		if len(d.Wants) > 0 {
			t.Errorf("container %s requests %v besides", d.Container.Name, d.Wants)
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReader_PodGroup_IsNamed(t *testing.T) {
	t.Parallel()
	p := newPod("p", container("a"))
	name := "g"
	p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: &name}
	if seen, _ := (reader{}).pod(p); seen.demand.Group != "g" {
		t.Errorf("got %+v", seen.demand)
	}
}

// What another writer puts into devmgrd's conditions costs as much as devmgrd's own at most, and of one type the first counts.
func TestShown_ForeignTexts_AreCut(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", ResourceVersion: "7"}}
	for range 100 {
		for _, of := range []corev1.PodConditionType{device.DevicesAssigned, device.DevicesHealthy, "example.com/other"} {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: of, Status: corev1.ConditionStatus(long), Reason: long, Message: long})
		}
	}
	got := shown(p)
	if len(got.Conditions) != 2 || got.Object != "u" || got.Version != 7 || got.Leaving {
		t.Fatalf("%d conditions of object %s in version %d, leaving: %v", len(got.Conditions), got.Object, got.Version, got.Leaving)
	}
	for _, c := range got.Conditions {
		if n := len(c.Status) + len(c.Reason) + len(c.Message); n > 1200 || len(c.Message) <= device.MaxPodCondition {
			t.Errorf("%s takes %d bytes, and its message %d", c.Type, n, len(c.Message))
		}
	}
}

// Shown has the pods that request devices, and its signal comes when what they show has changed.
func TestShown_Signal_OnChangesOnly(t *testing.T) {
	s := newStore(reader{}, newDiary(), &sandboxes{})
	put := func(change func(*corev1.Pod)) (signalled bool) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main",
			Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{"vendor.example/gpu": resource.MustParse("1")}}}}}}
		change(p)
		s.Update(p)
		select {
		case <-s.showing:
			return true
		default:
			return false
		}
	}
	condition := func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: device.DevicesHealthy, Status: "True"}}
	}
	for i, step := range []struct {
		change func(*corev1.Pod)
		want   bool
	}{
		{func(*corev1.Pod) {}, true},
		{func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}
		}, false},
		{condition, true},
		{condition, false},
		{func(p *corev1.Pod) { condition(p); p.DeletionTimestamp = &metav1.Time{} }, true},
	} {
		if got := put(step.change); got != step.want {
			t.Errorf("step %d: signal %v, want %v", i, got, step.want)
		}
	}
	if got := s.shown(); len(got) != 1 || !got["u"].Leaving || got["u"].Condition(device.DevicesHealthy).Status != "True" {
		t.Errorf("shown: %+v", got)
	}
}
