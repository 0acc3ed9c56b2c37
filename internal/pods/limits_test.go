package pods

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// crowd returns a pod of that many containers, which request that many resources and set that many variables each.
func crowd(name string, containers, resources, variables int) *corev1.Pod {
	p := newPod(name)
	p.ResourceVersion = "1"
	p.Spec.Containers = nil
	for i := range containers {
		c := corev1.Container{Name: fmt.Sprint("c", i), Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
		for k := range resources {
			c.Resources.Limits[corev1.ResourceName(fmt.Sprintf("made.up/r%d", k))] = resource.MustParse("1")
		}
		for k := range variables {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", k)})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func TestLimit_OfOnePod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string // the start of the mistake
	}{
		"as many resources as allowed":  {crowd("p", 3, 64, 0), ""},
		"one resource more":             {crowd("p", 3, 65, 0), "the pod requests 65 extended resources, and may request 64"},
		"thousands of made-up names":    {crowd("p", 1, 20_000, 0), "the pod requests 20000 extended resources"},
		"many containers and variables": {crowd("p", 20, 2, 100), ""},
		"too many variables":            {crowd("p", 20, 2, 300), "the names of the resources, containers"},
		"too many containers":           {crowd("p", 2000, 1, 0), "the names of the resources, containers"},
		"no device":                     {crowd("p", 5000, 0, 1), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := reader{}.pod(c.pod)
			if n := size(s.demand); n > 4*maxPodSize {
				t.Errorf("the demand has %d bytes", n)
			}
			if len(s.demand.Demands) != len(c.pod.Spec.Containers) && len(c.pod.Spec.Containers[0].Resources.Limits) > 0 {
				t.Errorf("%d of %d containers that request devices are known", len(s.demand.Demands), len(c.pod.Spec.Containers))
			}
			for _, d := range s.demand.Demands {
				if !strings.HasPrefix(d.Mistake, c.want) || (d.Mistake == "") != (c.want == "") {
					t.Fatalf("the mistake is %q", d.Mistake)
				}
				if d.Mistake != "" && (d.Blocked != device.PodTooLarge || d.Wants != nil || d.Env != nil) {
					t.Fatalf("the demand is %+v", d)
				}
			}
		})
	}
}

// heap returns the heap in use, and all that has ever been allocated. Tests that compare them do not run next to others.
func heap() (used, ever uint64) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, m.TotalAlloc
}

// A name that is cut from a text shares the text's memory. Pods have texts of about 1.4 MB.
func TestLimit_PartsOfLongTexts_DoNotKeepThem(t *testing.T) {
	for name, edit := range map[string]func(*corev1.Container){
		"an argument's reference": func(c *corev1.Container) { c.Args = []string{"$(ab)" + strings.Repeat("x", 1<<20)} },
		"a volume's path": func(c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{MountPath: "/ab" + strings.Repeat("/", 1<<20)}}
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "c"}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(reader{claims: true}, newDiary(), &sandboxes{all: true})
			before, _ := heap()
			for i := range 50 {
				p := newPod(fmt.Sprint("p", i), container("c", "made.up/r", "1"))
				edit(&p.Spec.Containers[0])
				s.Update(p)
			}
			if used, _ := heap(); used > before+5<<20 {
				t.Errorf("50 pods, which count as %d bytes, keep %d KiB", s.size, (used-before)>>10)
			}
			if len(s.pods) != 50 {
				t.Errorf("%d pods are known", len(s.pods))
			}
		})
	}
}

// A pod is read at each of its changes. What is beyond the limit makes the pod wait, however long it is.
func TestLimit_ArgumentsOfReferences_ReadUpToTheLimit(t *testing.T) {
	large := newPod("large", container("c", "made.up/r", "1"))
	var text strings.Builder
	for i := 0; text.Len() < 1_400_000; i++ {
		fmt.Fprintf(&text, "$(%x)", i)
	}
	large.Spec.Containers[0].Args = []string{text.String()}
	_, before := heap()
	began := time.Now()
	s, _ := reader{}.pod(large)
	took := time.Since(began)
	_, after := heap()
	t.Logf("reading took %v and %d KiB", took, (after-before)>>10)
	if after-before > 4*maxPodSize {
		t.Errorf("reading the pod allocates %d KiB", (after-before)>>10)
	}
	if d := s.demand.Demands[0]; d.Blocked != device.PodTooLarge {
		t.Errorf("the demand is %+v", d)
	}
}

// Pods that together request more than there is room for do not displace each other. One that was left out is taken when the runtime asks for it
// and others have ended. Pods without devices are taken always.
func TestLimit_OfAllPods(t *testing.T) {
	t.Parallel()
	d := newDiary()
	s := newStore(reader{}, d, &sandboxes{all: true})
	large := crowd("x", 1, 1, 0)
	large.Spec.Containers[0].Env = []corev1.EnvVar{{Name: strings.Repeat("X", maxPodSize-4000)}}
	named := func(name string) *corev1.Pod {
		p := *large
		p.Name, p.UID = name, types.UID(name)
		return &p
	}
	one, _ := reader{}.pod(large)
	fit := maxPodsSize / size(one.demand)
	for i := range fit + 3 {
		s.Update(named(fmt.Sprint("p", i)))
	}
	if n := len(d.bound); n != fit {
		t.Fatalf("%d pods are known, want %d", n, fit)
	}
	late, _ := reader{}.pod(named(fmt.Sprint("p", fit)))
	fetch := func() error { return s.fetched(late) }
	if no := (*device.Refusal)(nil); !errors.As(fetch(), &no) || no.Reason != device.PodTooLarge {
		t.Errorf("fetching a pod without room: %v", fetch())
	}
	s.Update(crowd("other", 3000, 0, 0))
	s.Update(crowd("bare", 3000, 0, 0))
	if p, known := d.bound["bare"]; !known || p.Containers != nil {
		t.Errorf("a pod without devices: known %v, with %d containers", known, len(p.Containers))
	}
	gone, _ := reader{}.pod(named("gone"))
	s.Update(named("gone"))
	left := s.left[gone.demand.Pod]
	s.Delete(cache.DeletedFinalStateUnknown{Key: keyOf(gone.demand.Pod).String()})
	if !left || s.left[gone.demand.Pod] {
		t.Errorf("one without room: left out %v, and after its deletion %v", left, s.left[gone.demand.Pod])
	}
	s.Delete(named("p0"))
	s.Delete(named("p1"))
	if err := fetch(); err != nil || !s.knows(late.demand.Pod) {
		t.Errorf("fetching it when another pod has ended: %v", err)
	}
	ended, _ := reader{}.pod(named(fmt.Sprint("p", fit+1)))
	s.Delete(named(fmt.Sprint("p", fit+1)))
	if err := s.fetched(ended); !errors.Is(err, ErrNotFound) {
		t.Errorf("fetching one that was left out and has ended: %v", err)
	}

	// A full list: the oldest have room.
	var all []any
	for i := range fit + 2 {
		all = append(all, named(fmt.Sprintf("p%05d", i)))
	}
	s.Replace(all, "2")
	if _, last := d.bound[device.PodUID(fmt.Sprintf("p%05d", fit+1))]; last || len(d.bound) != fit {
		t.Errorf("%d pods of a list are known, want %d; the last: %v", len(d.bound), fit, last)
	}
	sum := 0
	for _, p := range d.bound {
		sum += size(p)
	}
	if s.size != sum {
		t.Errorf("the store counts %d bytes, and the demands have %d", s.size, sum)
	}
}

// fat is a pod that takes nearly as much as one may.
func fat(name string, edit ...func(*corev1.Pod)) *corev1.Pod {
	p := newPod(name, container("c", "made.up/r", "1"))
	p.ResourceVersion = "1"
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: strings.Repeat("X", maxPodSize-24<<10)}}
	for _, f := range edit {
		f(p)
	}
	return p
}

func fill(s *store, edit ...func(*corev1.Pod)) (all []any) {
	for i := range 2 * maxPodsSize / maxPodSize {
		p := fat(fmt.Sprintf("fat%05d", i), edit...)
		all = append(all, p)
		s.Update(p)
	}
	return all
}

// The kubelet ends pods that are too many for it, but not pods that look like mirror pods and have a finalizer.
func TestLimit_ForgedMirrorPods_LeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	d := newDiary()
	s := newStore(reader{}, d, &sandboxes{})
	fill(s, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(p.Name)} })
	s.Update(newPod("honest", container("c", "a.example/gpu", "1")))
	if n := len(s.held); n > maxMirrorsSize/(maxPodSize-32<<10) || len(d.bound) != 1 || d.bound["honest"].Pod.Name == "" {
		t.Errorf("%d forged pods are kept; %d pods are known, among them the honest one: %v", n, len(d.bound), d.bound["honest"].Pod.Name != "")
	}
}

// Pods that were left out are older than one that is known, or that the kubelet has admitted. A full list follows, also of a devmgrd that has just started.
func TestLimit_FullList_KeepsPodsThatRun(t *testing.T) {
	t.Parallel()
	d := newDiary()
	s := newStore(reader{}, d, &sandboxes{all: true})
	honest := newPod("honest", container("c", "a.example/gpu", "1"))
	honest.CreationTimestamp = metav1.NewTime(born.Add(time.Hour))
	s.Update(honest)
	all := append(fill(s), any(honest))
	s.Replace(all, "2")
	if d.bound["honest"].Pod.Name == "" {
		t.Error("a pod that was known is dropped")
	}
	d = newDiary()
	began := metav1.Now()
	honest.Status.StartTime, honest.Status.ContainerStatuses = &began, []corev1.ContainerStatus{{Name: "c"}}
	newStore(reader{}, d, &sandboxes{all: true}).Replace(all, "2")
	if d.bound["honest"].Pod.Name == "" {
		t.Error("a pod that the kubelet has admitted is dropped at the start")
	}
}

func TestLimit_PodsGrow_KeepTheirRequests(t *testing.T) {
	t.Parallel()
	d := newDiary()
	s := newStore(reader{selectors: true}, d, &sandboxes{all: true})
	all := fill(s)
	before := s.size
	grown, kept := 0, 0
	for i := range len(all) / 8 { // each of them is known, and there is room for a few to grow
		size := s.size
		s.Update(fat(fmt.Sprintf("fat%05d", i), func(p *corev1.Pod) {
			p.Annotations = map[string]string{device.DevicesAnnotation: `{"c":{"made.up/r":{"use":["` + strings.Repeat("Y", 16_000) + `"]}}}`}
		}))
		if s.size > size {
			grown++
		} else if s.size == size {
			kept++
		}
	}
	if s.size > maxPodsSize || s.size < before || grown == 0 || kept == 0 {
		t.Errorf("the pods took %d bytes, and take %d of %d; %d have grown, and %d could not", before, s.size, maxPodsSize, grown, kept)
	}
}

func TestLimit_ClaimsOfOnePod(t *testing.T) {
	t.Parallel()
	for claims, want := range map[int]string{64: "", 65: "the pod names 65 ResourceClaims, and may name 64"} {
		p := newPod("p", corev1.Container{Name: "a"}, corev1.Container{Name: "b"})
		for i := range claims {
			name := fmt.Sprint("claim", i)
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
			for k := range p.Spec.Containers {
				p.Spec.Containers[k].Resources.Claims = append(p.Spec.Containers[k].Resources.Claims, corev1.ResourceClaim{Name: name})
			}
		}
		s, _ := reader{claims: true}.pod(p)
		if len(s.demand.Demands) != 2 {
			t.Fatalf("%d containers are known", len(s.demand.Demands))
		}
		for _, d := range s.demand.Demands {
			if d.Mistake != want || (d.Blocked == device.PodTooLarge) != (want != "") || want != "" && d.Claims != nil {
				t.Errorf("%d claims: %q, %q, %d claims are known", claims, d.Blocked, d.Mistake, len(d.Claims))
			}
		}
	}
}

// Looking through all claims of the pod for each use of one would take minutes here.
func TestLimit_ManyUsesOfManyClaims_CostLittle(t *testing.T) {
	t.Parallel()
	const n = 100_000
	p := newPod("p", corev1.Container{Name: "a"})
	for i := range n {
		name := fmt.Sprintf("%06d", i)
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: name})
	}
	var s podState
	took := plugintest.ProcessorTime(t, func() { s, _ = reader{claims: true}.pod(p) })
	if took > 20*time.Second || s.demand.Demands[0].Blocked != device.PodTooLarge {
		t.Errorf("%v, %+v", took, s.demand.Demands[0].Blocked)
	}
}

// The kubelet never runs a mirror pod, and counts none: a tenant may have thousands of them.
func TestMirrorPod_NamesAClaim_ClaimIsNotRead(t *testing.T) {
	t.Parallel()
	name := "claim"
	p := newPod("p", corev1.Container{Name: "a", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: name}}}})
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: name, ResourceClaimName: &name}}
	if s, _ := (reader{claims: true}).pod(p); len(s.demand.Demands) != 1 || len(s.demand.Demands[0].Claims) != 1 {
		t.Fatalf("%+v", s.demand.Demands)
	}
	for _, own := range []string{"", "{}"} {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x", resourcesKey: own}
		if s, _ := (reader{claims: true}).pod(p); len(s.demand.Demands) > 0 {
			t.Errorf("%+v", s.demand.Demands)
		}
	}
}
