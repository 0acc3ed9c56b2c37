package pods

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// sandboxes are what a container runtime shows.
type sandboxes struct {
	mu      sync.Mutex
	runs    map[device.PodUID]bool
	all     bool                // each static pod, without the annotation
	statics map[device.Pod]bool // with the annotation, or without
	changed chan struct{}
}

func (r *sandboxes) Has(uid device.PodUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.runs[uid]
}

func (r *sandboxes) Static(pod device.Pod) (shown, local bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	local, shown = r.statics[pod]
	return shown || r.all, local
}

func (r *sandboxes) Changed() <-chan struct{} { return r.changed }

// list has the runtime list these static pods, named as at names them.
func (r *sandboxes) list(local bool, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.statics = map[device.Pod]bool{}
	for _, name := range names {
		r.statics[device.Pod{UID: device.PodUID(hashOf(name)), Namespace: "ns", Name: name}] = local
	}
}

// A pod that looks like a mirror pod counts once the runtime shows its static pod, and as that says.
func TestMirror_CountsWithItsStaticPod(t *testing.T) {
	t.Parallel()
	forge := func(name string, version int) *corev1.Pod { // of the static pod a
		p := at("a", version, "mirror")
		p.Namespace, p.Name, p.UID = "evil", name, "evil"
		return p
	}
	known := func(s *store, want bool) {
		t.Helper()
		if got := s.knows(device.Pod{UID: device.PodUID(hashOf("a")), Namespace: "ns", Name: "a"}); got != want {
			t.Errorf("the pod is known: %v", got)
		}
	}
	fetch := func(s *store, p *corev1.Pod, want bool) {
		t.Helper()
		seen, _ := s.reader.pod(p)
		if err := s.fetched(seen); (err == nil) != want {
			t.Errorf("fetched: %v", err)
		}
	}
	for name, c := range map[string]struct {
		story func(*store, *sandboxes)
		want  string
	}{
		"forged":            {func(s *store, r *sandboxes) { r.list(false); s.Update(at("a", 11, "mirror")); s.lookAtRuntime() }, "replace"},
		"forged, in a list": {func(s *store, r *sandboxes) { r.list(false); s.Replace([]any{at("a", 11, "mirror")}, "12") }, "replace,replace"},
		"forged, without a hash": {func(s *store, r *sandboxes) {
			r.list(false)
			p := at("a", 11, "mirror")
			p.Annotations[corev1.MirrorPodAnnotationKey] = "x"
			s.Update(p)
		}, "replace"},
		"the static pod is made later": {func(s *store, r *sandboxes) {
			r.list(false)
			s.Update(at("a", 11, "mirror"))
			r.list(false, "a")
			s.lookAtRuntime()
			s.Delete(at("a", 12, "mirror"))
		}, "replace,bind A,drop A"},
		"the static pod is made later, and its container is created at once": {func(s *store, r *sandboxes) {
			r.list(false)
			s.Update(at("a", 11, "mirror"))
			r.list(false, "a")
			seen, _ := s.reader.pod(at("a", 11, "mirror"))
			if !s.knows(seen.demand.Pod) {
				t.Error("the pod is not known")
			}
		}, "replace,bind A"},
		"deleted before": {func(s *store, r *sandboxes) {
			r.list(false)
			s.Update(at("a", 11, "mirror"))
			s.Delete(at("a", 12, "mirror"))
			r.list(false, "a")
			s.lookAtRuntime()
		}, "replace"},
		"its sandbox is made again": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror"))
			r.list(false)
			s.lookAtRuntime()
			s.Update(at("a", 12, "mirror"))
		}, "replace,bind A,bind A"},
		"before the runtime has listed": {func(s *store, r *sandboxes) {
			s.Update(at("a", 11, "mirror"))
			r.list(false, "a")
			s.lookAtRuntime()
		}, "replace,bind A"},
		"forged, before the runtime has listed": {func(s *store, r *sandboxes) {
			s.Update(at("b", 11, "mirror"))
			r.list(false, "a")
			s.lookAtRuntime()
		}, "replace"},
		"another claims its UID first": {func(s *store, r *sandboxes) {
			s.Update(forge("x", 11))
			s.Update(at("a", 12, "mirror"))
			r.list(false, "a")
			s.lookAtRuntime()
			s.Delete(forge("x", 13))
		}, "replace,bind A"},
		"forged, and the true one is not in a list": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror"))
			s.Update(forge("x", 12))
			s.Replace([]any{forge("x", 12)}, "20")
			s.lookAtRuntime()
		}, "replace,bind A,replace"},
		"fetched, and an older list lacks it": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			seen, _ := s.reader.pod(at("a", 15, "mirror"))
			if err := s.fetched(seen); err != nil {
				t.Error(err)
			}
			s.Replace(nil, "12")
		}, "replace,bind A,replace A"},
		"it had devices before the node's boot, and has no sandbox yet": {func(s *store, r *sandboxes) {
			r.list(false)
			s.served = map[device.Pod]bool{{UID: device.PodUID(hashOf("a")), Namespace: "ns", Name: "a"}: true}
			s.Replace([]any{at("a", 9, "mirror"), forge("x", 8)}, "12")
		}, "replace,replace A"},
		"its static pod runs again": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror"))
			s.Update(at("a", 12, "mirror", "Failed"))
			s.lookAtRuntime()
			known(s, true)
			if len(s.shown()) > 0 {
				t.Error("a condition is written to it, and it is dropped again")
			}
			s.Update(at("a", 13, "mirror", "Pending"))
			s.Update(at("a", 14, "mirror", "Succeeded"))
		}, "replace,bind A,drop A,bind A,bind A,drop A"},
		"its static pod runs again, and its phase stays terminal": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Replace([]any{at("a", 11, "mirror", "Failed")}, "12")
			s.lookAtRuntime()
			known(s, true)
			s.Update(at("a", 13, "mirror", "Failed"))
			known(s, true)
			s.Replace([]any{at("a", 13, "mirror", "Failed")}, "14")
			known(s, true)
			s.Delete(at("a", 15, "mirror", "Failed"))
			known(s, false)
		}, "replace,replace,bind A,drop A,bind A,replace,bind A,drop A"},
		"its static pod runs again, and it is fetched before the watch shows its end": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			fetch(s, at("a", 15, "mirror", "Failed"), true)
			s.Replace(nil, "12")
			s.Update(at("a", 15, "mirror", "Failed"))
			known(s, true)
		}, "replace,bind A,replace A,drop A,bind A"},
		"ended, and deleted while the answer was on its way": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror", "Failed"))
			s.Delete(at("a", 12, "mirror", "Failed"))
			fetch(s, at("a", 11, "mirror", "Failed"), false)
		}, "replace"},
		"ended, and missing in the next list": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror", "Failed"))
			s.Replace(nil, "13")
			known(s, false)
			fetch(s, at("a", 11, "mirror", "Failed"), false)
		}, "replace,replace"},
		"forged, and ended": {func(s *store, r *sandboxes) {
			r.list(false)
			s.Update(at("a", 11, "mirror", "Failed"))
			known(s, false)
			fetch(s, at("a", 11, "mirror", "Failed"), false)
		}, "replace"},
		"another one of its UID has ended": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror"))
			end := forge("x", 12)
			end.Status.Phase = corev1.PodFailed
			s.Update(end)
			known(s, true)
			s.Delete(end)
		}, "replace,bind A"},
		"the runtime reports its requests": {func(s *store, r *sandboxes) { r.list(true, "a"); s.Update(at("a", 11, "mirror")) }, "replace,bind A="},
		"its owner adds the annotation, and takes it away": {func(s *store, r *sandboxes) {
			r.list(false, "a")
			s.Update(at("a", 11, "mirror"))
			s.Update(at("a", 12, "local"))
			s.Delete(at("a", 13, "local"))
			r.list(true, "b")
			s.Update(at("b", 14, "local"))
			s.Update(at("b", 15, "mirror"))
			s.Delete(at("b", 16, "mirror"))
		}, "replace,bind A,bind A,drop A,bind B=,bind B=,drop B"},
		"the annotation was guessed wrong": {func(s *store, r *sandboxes) {
			s.Update(at("a", 11, "local"))
			r.list(false, "a")
			s.lookAtRuntime()
		}, "replace,bind A"},
	} {
		t.Run(name, func(t *testing.T) {
			d, r := newDiary(), &sandboxes{}
			s := newStore(reader{}, d, r)
			s.Replace(nil, "10")
			c.story(s, r)
			want := strings.NewReplacer("A", hashOf("a"), "B", hashOf("b")).Replace(c.want)
			if got := strings.Join(d.said(), ","); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			for _, e := range s.held {
				s.mirrors -= e.size
			}
			for _, e := range s.pods {
				s.size -= e.size
			}
			if s.mirrors != 0 || s.size != 0 {
				t.Errorf("%d and %d bytes too many count", s.mirrors, s.size)
			}
		})
	}
}

// Forged mirror pods take all the room that there is for them. A static pod is served.
func TestMirror_ForgedOnesFillTheirRoom_StaticPodIsServed(t *testing.T) {
	t.Parallel()
	d, r := newDiary(), &sandboxes{}
	r.list(false)
	s := newStore(reader{}, d, r)
	s.Replace(nil, "10")
	fill(s, func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(p.Name)}
	})
	s.Update(at("late", 1<<20, "mirror"))
	if len(d.bound) > 0 || len(s.held) == 0 {
		t.Errorf("%d forged pods are bound, %d are held", len(d.bound), len(s.held))
	}
	r.list(false, "late")
	seen, _ := s.reader.pod(at("late", 1<<20, "mirror"))
	if err := s.fetched(seen); err != nil || len(d.bound) != 1 {
		t.Errorf("the static pod is not known: %v", err)
	}
}

// Forged mirror pods take all the room, so that a static pod's mirror is left out. Another forged one with its UID is deleted.
func TestMirror_LeftOutAndForgedOneDeleted_StaticPodIsServed(t *testing.T) {
	t.Parallel()
	d, r := newDiary(), &sandboxes{}
	s := newStore(reader{}, d, r)
	s.Replace(nil, "10")
	fill(s, func(p *corev1.Pod) {
		p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(p.Name)}
	})
	late := at("late", 1<<20, "mirror")
	for i := 0; len(s.left) == 0 || !s.left[device.Pod{UID: device.PodUID(hashOf("late")), Namespace: "ns", Name: "late"}]; i++ { // small ones take the rest
		s.Update(at(fmt.Sprint("small", i), 900_000+i, "mirror"))
		s.Update(late)
		s.unholdLocked(device.Pod{UID: device.PodUID(hashOf("late")), Namespace: "ns", Name: "late"})
	}
	forged := at("late", 1<<20+1, "mirror")
	forged.Namespace, forged.Name, forged.UID = "evil", "x", "evil"
	s.Update(forged)
	s.Delete(forged)
	r.list(false, "late")
	seen, _ := s.reader.pod(late)
	if err := s.fetched(seen); err != nil || len(d.bound) != 1 {
		t.Errorf("the static pod is not known: %v", err)
	}
}
