package pods

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
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

func (d *diary) Bind(p device.PodDemand) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, "bind "+string(p.Pod.UID))
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
		uids = append(uids, string(p.Pod.UID))
	}
	slices.Sort(uids)
	d.lines = append(d.lines, strings.TrimSpace("replace "+strings.Join(uids, " ")))
}

// has gives the UIDs that are bound, ascending, with spaces between them.
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

// at gives a pod named uid in a version; what follows is the phase, or "mirror" for the mirror of a static pod, or "local"
// for that of one which says itself what it asks for.
func at(uid string, version int, what ...string) *corev1.Pod {
	p := newPod(uid, container("c", "a.example/gpu", "1"))
	p.ResourceVersion = fmt.Sprint(version)
	p.Status.Phase = corev1.PodRunning
	for _, w := range what {
		switch w {
		case "mirror":
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash-of-" + uid}
			continue
		case "local":
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "hash-of-" + uid, resourcesKey: "{}"}
			continue
		}
		p.Status.Phase = corev1.PodPhase(w)
	}
	return p
}

func TestStore(t *testing.T) {
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
		if got := s.fetched(seen); got != want {
			t.Errorf("fetching %s gives %v", p.Name, got)
		}
	}
	for name, c := range map[string]struct {
		story func()
		want  string // lines of the diary, with commas between them
	}{
		"a pod's life": {func() {
			list(10)
			s.Add(at("a", 11, "Pending"))
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
		"ended pods, and those of which the runtime tells, are not there": {func() {
			list(10, at("a", 9, "local"), at("b", 9, "Failed"), at("c", 9))
			s.Add(at("d", 11, "local"))
			s.Delete(at("d", 12, "local"))
		}, "replace c"},
		"mirror pods go by the runtime's UID": {func() {
			list(10, at("a", 9, "mirror"))
			s.Add(at("b", 11, "mirror"))
			s.Delete(at("b", 12, "mirror"))
			s.Update(at("a", 13, "mirror", "Failed"))
		}, "replace hash-of-a,bind hash-of-b,drop hash-of-b,drop hash-of-a"},
		"fetched before the first list":               {func() { fetch(at("a", 12), true); list(10); s.Add(at("a", 11)) }, "bind a,replace a,bind a"},
		"fetched, and the list is newer and lacks it": {func() { fetch(at("a", 12), true); list(13) }, "bind a,replace"},
		"fetched, shown, and then a list lacks it": {func() {
			list(10)
			fetch(at("a", 12), true)
			s.Add(at("a", 11))
			list(11)
		}, "replace,bind a,bind a,replace"},
		"fetched, and ended while the answer was on its way": {func() {
			list(10, at("a", 9))
			s.Delete(at("a", 12))
			fetch(at("a", 11), false)
		}, "replace a,drop a"},
		"fetched, and ended while the watch was away": {func() { list(10); list(20); fetch(at("a", 15), false) }, "replace,replace"},
		"fetched, and the watch has just moved on":    {func() { list(10); s.Bookmark("20"); fetch(at("a", 15), false); fetch(at("b", 21), true) }, "replace,bind b"},
		"fetched twice":      {func() { list(10); fetch(at("a", 11), true); fetch(at("a", 12), true) }, "replace,bind a"},
		"versions went back": {func() { list(100, at("a", 90)); list(20, at("a", 10)); fetch(at("b", 21), true) }, "replace a,replace a,bind b"},
		"things that are no pods": {func() {
			s.Add("x")
			s.Delete(cache.DeletedFinalStateUnknown{Key: "x", Obj: "x"})
			s.Delete(3)
			s.Resync()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDiary()
			s = &store{sink: d, pods: map[device.PodUID]entry{}}
			c.story()
			if got := strings.Join(d.said(), ","); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
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

func TestIgnored(t *testing.T) {
	got := ignoring([]string{"a.example/x", "b.example/*"})
	for name, want := range map[device.ResourceName]bool{"a.example/x": true, "a.example/y": false, "b.example/y": true, "c.b.example/y": false} {
		if !reflect.DeepEqual(got.has(name), want) {
			t.Errorf("%s: %v", name, !want)
		}
	}
}
