package dra

import (
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A version is one ResourceSlice at its latest known version.
type version struct {
	number uint64                     // its resourceVersion
	slice  *resourceapi.ResourceSlice // never changed; nil: deleted
}

// store holds devmgrd's ResourceSlices of this node, from the watch and from the answers to writes. It is the reflector's store: its
// methods never fail.
type store struct {
	changed  chan struct{} // holds one token when the watch has brought news
	removed  chan struct{} // likewise when another client has removed a slice
	relisted chan struct{} // likewise after a full list: the API server is back
	first    chan struct{} // closed at the first full list

	mu     locks.Mutex[locks.Leaf] // guards what follows; never held across I/O
	byName map[string]version
	listed time.Time                         // when there was the first full list; zero: there has been none
	left   map[device.ResourceName]time.Time // when the last removal of a resource's slice was noticed
}

func newStore() *store {
	return &store{changed: make(chan struct{}, 1), removed: make(chan struct{}, 1), relisted: make(chan struct{}, 1), first: make(chan struct{}), byName: map[string]version{}, left: map[device.ResourceName]time.Time{}}
}

// now returns the ResourceSlices by name; known is false before the first list.
func (s *store) now() (all map[string]*resourceapi.ResourceSlice, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all = make(map[string]*resourceapi.ResourceSlice, len(s.byName))
	for name, v := range s.byName {
		if v.slice != nil {
			all[name] = v.slice
		}
	}
	return all, !s.listed.IsZero()
}

// observe stores a version of a ResourceSlice unless a newer one is known, and reports whether it did. An event of the watch may be
// older than the answer to a write.
func (s *store) observe(name string, v version) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.number <= s.byName[name].number {
		return false
	}
	if v.slice == nil {
		s.leaveLocked(s.byName[name].slice)
	}
	s.byName[name] = v
	return true
}

// leaveLocked records that a ResourceSlice is gone; nil: it was not there.
func (s *store) leaveLocked(slice *resourceapi.ResourceSlice) {
	if slice != nil {
		s.left[resourceOf(slice)] = time.Now()
	}
}

// of reports whether there is a ResourceSlice of a resource, when one has left, and when the slices were listed first; zero: not yet.
func (s *store) of(r device.ResourceName) (is bool, left, listed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.byName {
		if v.slice != nil && resourceOf(v.slice) == r {
			return true, time.Time{}, s.listed
		}
	}
	return false, s.left[r], s.listed
}

// resourceOf returns the resource of a ResourceSlice.
func resourceOf(slice *resourceapi.ResourceSlice) device.ResourceName {
	return device.ResourceName(slice.Annotations[resourceAnnotation])
}

// share has a stored ResourceSlice that shows what is wanted use the attributes of want, so that no copies of them stay in memory.
func (s *store) share(shown, want *resourceapi.ResourceSlice) {
	if slices.EqualFunc(shown.Spec.Devices, want.Spec.Devices, func(x, y resourceapi.Device) bool { return identical(x.Attributes, y.Attributes) }) {
		return
	}
	next := *shown
	next.Spec.Devices = slices.Clone(shown.Spec.Devices)
	for i := range next.Spec.Devices {
		next.Spec.Devices[i].Attributes = want.Spec.Devices[i].Attributes
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.byName[shown.Name]; v.slice == shown {
		s.byName[shown.Name] = version{v.number, &next}
	}
}

// missing records that the API server does not have the version of a ResourceSlice that is known.
func (s *store) missing(name string, known *resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v := s.byName[name]; v.slice == known {
		s.leaveLocked(known)
		s.byName[name] = version{number: v.number}
	}
}

// Add receives a ResourceSlice from the watch.
func (s *store) Add(obj any) error { return s.Update(obj) }

// Update receives a change from the watch.
func (s *store) Update(obj any) error {
	if slice, ok := obj.(*resourceapi.ResourceSlice); ok && s.observe(slice.Name, version{kube.ParseVersion(slice.ResourceVersion), slice}) {
		loops.Signal(s.changed)
	}
	return nil
}

// Delete receives a deletion from the watch.
func (s *store) Delete(obj any) error {
	if tomb, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tomb.Obj
	}
	slice, ok := obj.(*resourceapi.ResourceSlice)
	if !ok {
		return nil
	}
	s.mu.Lock()
	before := s.byName[slice.Name].slice
	s.mu.Unlock()
	if s.observe(slice.Name, version{number: kube.ParseVersion(slice.ResourceVersion)}) {
		if before != nil {
			loops.Signal(s.removed)
		}
		loops.Signal(s.changed)
	}
	return nil
}

// Replace receives a full list. It is believed even where an answer to a write was newer: the watch repeats that version.
func (s *store) Replace(list []any, _ string) error {
	all := make(map[string]version, len(list))
	for _, obj := range list {
		if slice, ok := obj.(*resourceapi.ResourceSlice); ok {
			all[slice.Name] = version{kube.ParseVersion(slice.ResourceVersion), slice}
		}
	}
	s.mu.Lock()
	for name, v := range s.byName {
		if all[name].slice == nil {
			s.leaveLocked(v.slice)
		}
	}
	s.byName = all
	if s.listed.IsZero() {
		s.listed = time.Now()
		close(s.first)
	}
	s.mu.Unlock()
	loops.Signal(s.relisted)
	loops.Signal(s.changed)
	return nil
}

// Resync is never called.
func (s *store) Resync() error { return nil }

// newObjects returns the objects into which the watch decodes.
func newObjects() (object, list runtime.Object) {
	return &resourceapi.ResourceSlice{}, &resourceapi.ResourceSliceList{}
}
