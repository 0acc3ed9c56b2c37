package dra

import (
	"maps"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// store holds devmgrd's ResourceSlices of this node, from the watch and from the answers to writes.
type store struct {
	changed  chan struct{} // holds one token when the watch has brought news
	removed  chan struct{} // likewise when another client has removed a slice
	relisted chan struct{} // likewise after a full list: the API server is back
	first    chan struct{} // closed at the first full list

	mu     locks.Mutex[locks.Leaf]                  // guards what follows; never held across I/O
	slices kube.Objects[*resourceapi.ResourceSlice] // which are never changed
	listed time.Time                                // when there was the first full list; zero: there has been none
	left   map[device.ResourceName]time.Time        // when the last removal of a resource's slice was noticed, for bindingTime at least
	pruned time.Time                                // when those of left that are older were forgotten
}

func newStore() *store {
	return &store{changed: make(chan struct{}, 1), removed: make(chan struct{}, 1), relisted: make(chan struct{}, 1), first: make(chan struct{}), left: map[device.ResourceName]time.Time{}}
}

// now returns the ResourceSlices by name; known is false before the first list.
func (s *store) now() (all map[string]*resourceapi.ResourceSlice, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Collect(s.slices.All()), !s.listed.IsZero()
}

// observe takes a ResourceSlice from the answer to a write.
func (s *store) observe(slice *resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slices.Answered(slice.Name, kube.ParseVersion(slice.ResourceVersion), slice)
}

// leaveLocked records that a ResourceSlice is gone. Anyone with the node's token may name any resource in one.
func (s *store) leaveLocked(slice *resourceapi.ResourceSlice) {
	r, err := device.ParseResourceName(string(resourceOf(slice)))
	if err != nil {
		return
	}
	now := time.Now()
	if now.Sub(s.pruned) >= bindingTime {
		maps.DeleteFunc(s.left, func(_ device.ResourceName, at time.Time) bool { return now.Sub(at) >= bindingTime })
		s.pruned = now
	}
	s.left[r] = now
}

// of reports whether there is a ResourceSlice of a resource, when one has left, and when the slices were listed first; zero: not yet.
func (s *store) of(r device.ResourceName) (is bool, left, listed time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, slice := range s.slices.All() {
		if resourceOf(slice) == r {
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
	if now, _ := s.slices.Get(shown.Name); now == shown {
		s.slices.Exchange(shown.Name, &next)
	}
}

// missing records that the API server does not have the version of a ResourceSlice that is known.
func (s *store) missing(name string, known *resourceapi.ResourceSlice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, _ := s.slices.Get(name); now == known {
		s.leaveLocked(known)
		s.slices.Missing(name)
	}
}

// Update receives a change from the watch.
func (s *store) Update(obj any) {
	slice, ok := obj.(*resourceapi.ResourceSlice)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.slices.Seen(slice.Name, kube.ParseVersion(slice.ResourceVersion), slice) {
		loops.Signal(s.changed)
	}
}

// Delete receives a deletion from the watch.
func (s *store) Delete(obj any) {
	slice, ok := obj.(*resourceapi.ResourceSlice)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	was, _ := s.slices.Get(slice.Name)
	if s.slices.Deleted(slice.Name, kube.ParseVersion(slice.ResourceVersion)) {
		s.leaveLocked(was)
		loops.Signal(s.removed)
		loops.Signal(s.changed)
	}
}

// Replace receives a full list.
func (s *store) Replace(list []any, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := maps.Collect(s.slices.All())
	s.slices.Replace(kube.ParseVersion(version))
	for _, obj := range list {
		if slice, ok := obj.(*resourceapi.ResourceSlice); ok {
			s.slices.Listed(slice.Name, kube.ParseVersion(slice.ResourceVersion), slice)
			delete(before, slice.Name)
		}
	}
	for _, slice := range before {
		s.leaveLocked(slice)
	}
	if s.listed.IsZero() {
		s.listed = time.Now()
		close(s.first)
	}
	loops.Signal(s.relisted)
	loops.Signal(s.changed)
}

// Bookmark records that the watch has delivered everything up to a version.
func (s *store) Bookmark(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slices.Passed(kube.ParseVersion(version))
}
