package pods

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
)

// diary is a Sink that writes down what it hears and keeps the pods that it should have.
type diary struct {
	mu    sync.Mutex
	lines []string
	bound map[device.PodUID]device.PodDemand
}

func newDiary() *diary { return &diary{bound: map[device.PodUID]device.PodDemand{}} }

// written is a pod's UID, with a sign if it is only counted.
func written(p device.PodDemand) string {
	if p.Mirror {
		return string(p.Pod.UID) + "="
	}
	return string(p.Pod.UID)
}

func (d *diary) Bind(p device.PodDemand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, "bind "+written(p))
	d.bound[p.Pod.UID] = p
}

func (d *diary) Drop(uid device.PodUID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, "drop "+string(uid))
	delete(d.bound, uid)
}

func (d *diary) Replace(all []device.PodDemand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.bound)
	var uids []string
	for _, p := range all {
		d.bound[p.Pod.UID] = p
		uids = append(uids, written(p))
	}
	slices.Sort(uids)
	d.lines = append(d.lines, strings.TrimSpace("replace "+strings.Join(uids, " ")))
}

// has returns the UIDs that are bound, ascending, with spaces between them.
func (d *diary) has() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var uids []string
	for uid := range d.bound {
		uids = append(uids, string(uid))
	}
	slices.Sort(uids)
	return strings.Join(uids, " ")
}

func (d *diary) said() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.lines)
}

// hashOf stands for the UID that a kubelet makes for a static pod.
func hashOf(name string) string { return fmt.Sprintf("%032x", name) }

// at returns a pod named uid in a version; what follows is the phase, or "mirror" for the mirror of a static pod, or "local"
// for that of one which says itself what it asks for.
func at(uid string, version int, what ...string) *corev1.Pod {
	p := newPod(uid, container("c", "a.example/gpu", "1"))
	p.ResourceVersion = fmt.Sprint(version)
	p.Status.Phase = corev1.PodRunning
	for _, w := range what {
		switch w {
		case "mirror":
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(uid)}
			continue
		case "local":
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: hashOf(uid), resourcesKey: "{}"}
			continue
		}
		p.Status.Phase = corev1.PodPhase(w)
	}
	return p
}

func TestStore(t *testing.T) {
	t.Parallel()
	var s *store
	list := func(version int, pods ...*corev1.Pod) {
		var objects []any
		for _, p := range pods {
			objects = append(objects, p)
		}
		s.Replace(objects, fmt.Sprint(version))
	}
	fetch := func(p *corev1.Pod, want bool) {
		t.Helper()
		seen, _ := s.reader.pod(p)
		if got := s.fetched(seen) == nil; got != want {
			t.Errorf("fetching %s returns %v", p.Name, got)
		}
	}
	for name, c := range map[string]struct {
		story func()
		want  string // lines of the diary, with commas between them
	}{
		"a pod's life": {func() {
			list(10)
			s.Update(at("a", 11, "Pending"))
			s.Update(at("a", 12))
			s.Update(at("a", 13, "Succeeded"))
			s.Update(at("a", 14, "Succeeded"))
			s.Delete(at("a", 15, "Succeeded"))
		}, "replace,bind a,bind a,drop a"},
		"deleted without an end":       {func() { list(10, at("a", 9)); s.Delete(at("a", 11)) }, "replace a,drop a"},
		"unknown pods are not dropped": {func() { list(10); s.Delete(at("a", 11)); s.Update(at("b", 12, "Failed")) }, "replace"},
		"tombstone with the pod": {func() {
			list(10, at("a", 9))
			s.Delete(cache.DeletedFinalStateUnknown{Key: "ns/a", Obj: at("a", 9)})
		}, "replace a,drop a"},
		"tombstone with the name only": {func() {
			list(10, at("a", 9), at("b", 9))
			s.Delete(cache.DeletedFinalStateUnknown{Key: "ns/a"})
		}, "replace a b,drop a"},
		"ended pods are not there": {func() { list(10, at("b", 9, "Failed"), at("c", 9)) }, "replace c"},
		"mirror pods that the runtime reports are counted separately": {func() {
			s.runtime.(*sandboxes).list(true, "a", "d")
			list(10, at("a", 9, "local"))
			s.Update(at("d", 11, "local"))
			s.Delete(at("d", 12, "local"))
		}, "replace A=,bind D=,drop D"},
		"mirror pods go by the runtime's UID": {func() {
			list(10, at("a", 9, "mirror"))
			s.Update(at("b", 11, "mirror"))
			s.Delete(at("b", 12, "mirror"))
			s.Update(at("a", 13, "mirror", "Failed"))
		}, "replace A,bind B,drop B,drop A"},
		"fetched before the first list":               {func() { fetch(at("a", 12), true); list(10); s.Update(at("a", 11)) }, "bind a,replace a,bind a"},
		"fetched, and the list is newer and lacks it": {func() { fetch(at("a", 12), true); list(13) }, "bind a,replace"},
		"fetched, shown, and then a list lacks it": {func() {
			list(10)
			fetch(at("a", 12), true)
			s.Update(at("a", 11))
			list(11)
		}, "replace,bind a,bind a,replace"},
		"fetched, and ended while the answer was on its way": {func() {
			list(10, at("a", 9))
			s.Delete(at("a", 12))
			fetch(at("a", 11), false)
		}, "replace a,drop a"},
		"fetched, and ended while the watch was away": {func() { list(10); list(20); fetch(at("a", 15), false) }, "replace,replace"},
		"fetched, and the watch has just moved on":    {func() { list(10); s.Bookmark("20"); fetch(at("a", 15), false); fetch(at("b", 21), true) }, "replace,bind b"},
		"fetched twice":                   {func() { list(10); fetch(at("a", 11), true); fetch(at("a", 12), true) }, "replace,bind a"},
		"versions went back":              {func() { list(100, at("a", 90)); list(20, at("a", 10)); fetch(at("b", 21), true) }, "replace a,replace a,bind b"},
		"fetched, and versions went back": {func() { list(100, at("a", 90)); fetch(at("b", 110), true); list(20, at("a", 10)) }, "replace a,bind b,replace a"},
		"things that are no pods": {func() {
			s.Update("x")
			s.Delete(cache.DeletedFinalStateUnknown{Key: "x", Obj: "x"})
			s.Delete(3)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary()
			s = newStore(reader{}, d, &sandboxes{all: true})
			c.story()
			want := strings.NewReplacer("A", hashOf("a"), "B", hashOf("b"), "D", hashOf("d")).Replace(c.want)
			if got := strings.Join(d.said(), ","); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
			var kept []string
			for uid := range s.pods {
				kept = append(kept, string(uid))
			}
			slices.Sort(kept)
			if got := strings.Join(kept, " "); got != d.has() {
				t.Errorf("the store keeps %q, the sink %q", got, d.has())
			}
		})
	}
}

// A user who may create pods can make one that names the UID of another user's static pod. It takes no device from the static pod,
// neither while it exists nor when it ends.
func TestForgedMirror(t *testing.T) {
	t.Parallel()
	forge := func(name string, version int, what ...string) *corev1.Pod {
		p := at("a", version, append(what, "mirror")...)
		p.Namespace, p.Name, p.UID = "evil", name, types.UID(name)
		return p
	}
	owner := device.Pod{UID: device.PodUID(hashOf("a")), Namespace: "ns", Name: "a"}
	for name, story := range map[string]func(s *store){
		"shown later": func(s *store) {
			s.Replace([]any{at("a", 9, "mirror")}, "10")
			s.Update(forge("x", 11))
		},
		"fetched later": func(s *store) {
			s.Update(at("a", 9, "mirror"))
			seen, _ := s.reader.pod(forge("x", 11))
			if s.fetched(seen) == nil || s.knows(seen.demand.Pod) {
				t.Error("the forged pod was bound")
			}
		},
		"ended": func(s *store) {
			s.Update(at("a", 9, "mirror"))
			s.Update(forge("x", 11, "Failed"))
		},
		"deleted": func(s *store) {
			s.Update(at("a", 9, "mirror"))
			s.Delete(forge("x", 11))
			s.Delete(cache.DeletedFinalStateUnknown{Key: "evil/x", Obj: forge("x", 12)})
			s.Delete(cache.DeletedFinalStateUnknown{Key: "evil/x"})
		},
		"listed before, and younger": func(s *store) {
			young := forge("a", 8)
			young.CreationTimestamp = metav1.NewTime(born.Add(time.Second))
			s.Replace([]any{young, at("a", 9, "mirror")}, "10")
		},
		"listed after, and younger": func(s *store) {
			young := forge("a", 8)
			young.CreationTimestamp = metav1.NewTime(born.Add(time.Second))
			s.Replace([]any{at("a", 9, "mirror"), young}, "10")
		},
		"listed, as old, and with a later name": func(s *store) {
			late := forge("a", 8)
			late.Namespace = "zz"
			s.Replace([]any{late, at("a", 9, "mirror")}, "10")
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary()
			s := newStore(reader{}, d, &sandboxes{all: true})
			story(s)
			if got := d.bound[owner.UID].Pod; got != owner || len(d.bound) != 1 || len(d.said()) != 1 || !s.knows(owner) {
				t.Errorf("the UID is of %+v, want %+v; told %q", got, owner, d.said())
			}
		})
	}
}

func TestIgnored(t *testing.T) {
	t.Parallel()
	got := ignoring([]string{"a.example/x", "b.example/*"})
	for name, want := range map[device.ResourceName]bool{"a.example/x": true, "a.example/y": false, "b.example/y": true, "c.b.example/y": false} {
		if !reflect.DeepEqual(got.has(name), want) {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
