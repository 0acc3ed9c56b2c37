package pods

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// store holds the active pods of this node and decides the calls to the Sink.
type store struct {
	reader  reader
	sink    Sink
	runtime Runtime
	served  map[device.Pod]bool // pods that had devices before devmgrd's start: the runtime has shown them then

	mu   locks.Mutex[locks.PodsStore] // guards what follows; held while the Sink is called, never across I/O
	pods map[device.PodUID]entry
	// held are pods that look like the mirrors of static pods and do not count: the Sink does not have them.
	held    map[types.NamespacedName]entry
	size    int                 // of all demands but those of mirrors
	mirrors int                 // of pods that look like mirrors, until the runtime shows their static pods
	left    map[device.Pod]bool // pods that the watch has delivered and that there was no room for
	// outlived are confined pods that the runtime has and the API server does not: they may have been deleted by force.
	outlived map[device.PodUID]device.Pod
	// showing has a value when shown pods have changed.
	showing chan struct{}
	// passed is the version up to which the watch has delivered everything.
	passed uint64
}

// An entry is one active pod.
type entry struct {
	podState
	size  int    // of the demand
	ahead uint64 // the version in which Fetch has read the pod; 0 once the watch has delivered it too
}

func newStore(r reader, to Sink, of Runtime) *store {
	return &store{reader: r, sink: to, runtime: of, pods: map[device.PodUID]entry{}, held: map[types.NamespacedName]entry{}, left: map[device.Pod]bool{}, outlived: map[device.PodUID]device.Pod{}, showing: make(chan struct{}, 1)}
}

// Update receives a pod from the watch.
func (s *store) Update(obj any) {
	seen, ok := s.reader.pod(obj)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, seen.version)
	switch _, taken := s.hasLocked(seen.demand.Pod); {
	case seen.ended:
		s.dropLocked(seen.demand.Pod)
		if seen.mirror {
			s.holdLocked(entry{podState: seen})
		}
	case taken && !seen.mirror:
	default:
		e := entry{podState: seen}
		if taken || !s.shownLocked(&e, s.pods[e.demand.Pod.UID]) {
			s.holdLocked(e)
			return
		}
		s.bindLocked(e)
	}
}

// bindLocked takes a pod and reports it to the Sink. It returns false if there is no room for its demand.
func (s *store) bindLocked(e entry) bool {
	s.unholdLocked(e.demand.Pod)
	e.ended = false // of a mirror pod: its static pod runs again
	if !s.keepLocked(&e) {
		return false
	}
	s.sink.Bind(e.demand)
	return true
}

// Any user may create a pod that looks like a mirror pod, and keep it for as long as they like: the kubelet neither admits nor rejects it. So it counts
// only once the runtime shows the static pod, by UID, namespace and name: until the runtime has listed its sandboxes, nothing is allocated. If the runtime
// reports the static pod's requests, those count and not the mirror's, whose owner may change the annotation.
//
// A mirror pod with a terminal phase does not count until the runtime creates a container of its static pod: the phase is then that of the static pod's
// last run, as after a graceful shutdown of the node. The kubelet writes the next phase seconds later, or never.

// shownLocked reports whether a pod counts. was is the entry of that UID so far.
func (s *store) shownLocked(e *entry, was entry) bool {
	if !e.mirror {
		return true
	}
	shown, local := s.runtime.Static(e.demand.Pod)
	switch {
	case was.mirror && was.demand.Pod == e.demand.Pod: // its sandbox may be between two
		e.demand.Mirror = was.demand.Mirror
		return true
	case shown:
		e.demand.Mirror = local
		return true
	}
	return s.served[e.demand.Pod] // after a boot, or before the runtime's list
}

// holdLocked keeps a pod that does not count, if there is room.
func (s *store) holdLocked(e entry) {
	s.unholdLocked(e.demand.Pod)
	e.size = size(e.demand)
	if s.mirrors+e.size > maxMirrorsSize {
		s.left[e.demand.Pod] = true
		return
	}
	s.mirrors += e.size
	s.held[keyOf(e.demand.Pod)] = e
}

// unholdLocked forgets a pod that does not count, if it is known.
func (s *store) unholdLocked(pod device.Pod) {
	if e, is := s.held[keyOf(pod)]; is && e.demand.Pod == pod {
		s.mirrors -= e.size
		delete(s.held, keyOf(pod))
	}
}

func keyOf(pod device.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

// followRuntime has mirror pods count or not as the runtime shows static pods, until ctx ends.
func (s *store) followRuntime(ctx context.Context) {
	for {
		s.lookAtRuntime()
		select {
		case <-ctx.Done():
			return
		case <-s.runtime.Changed():
		}
	}
}

func (s *store) lookAtRuntime() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.held {
		if !e.ended {
			s.countsLocked(e.demand.Pod)
		}
	}
}

// countsLocked binds a pod that has not counted so far and does now, and reports whether it is one.
func (s *store) countsLocked(pod device.Pod) bool {
	e, is := s.held[keyOf(pod)]
	if _, taken := s.hasLocked(pod); !is || taken || e.demand.Pod != pod || !s.shownLocked(&e, s.pods[e.demand.Pod.UID]) {
		return false
	}
	return s.bindLocked(e)
}

// keepLocked takes a pod, unless it requests devices and all pods' demands would take too much. Then it stays unknown: it is fetched again each
// time that the runtime creates a container of it.
func (s *store) keepLocked(e *entry) bool {
	uid := e.demand.Pod.UID
	was, known := s.pods[uid]
	s.size -= was.size
	e.size = size(e.demand)
	switch full := !e.mirror && s.size+e.size > maxPodsSize; { // root writes static pods
	case full && known && e.size > was.size: // an annotation has been changed
		e.demand.Demands, e.demand.Containers, e.demand.Sidecars, e.size = was.demand.Demands, was.demand.Containers, was.demand.Sidecars, was.size
	case full && !known && len(e.demand.Demands) > 0:
		s.left[e.demand.Pod] = true
		return false
	case full && !known:
		e.demand.Containers, e.demand.Sidecars = nil, 0
		e.size = size(e.demand)
	}
	s.size += e.size
	if !known || was.shown.Leaving != e.shown.Leaving || was.shown.Object != e.shown.Object || !slices.Equal(was.shown.Conditions, e.shown.Conditions) {
		loops.Signal(s.showing)
	}
	s.pods[uid] = *e
	delete(s.left, e.demand.Pod)
	return true
}

// Delete receives the deletion of a pod from the watch.
func (s *store) Delete(obj any) {
	pod, version, ok := s.reader.deleted(obj)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, version)
	if pod.UID != "" {
		s.dropLocked(pod)
		return
	}
	for _, e := range s.pods { // a tombstone without the object: only the name is left
		if e.demand.Pod.Namespace == pod.Namespace && e.demand.Pod.Name == pod.Name {
			s.dropLocked(e.demand.Pod)
		}
	}
	if e, is := s.held[keyOf(pod)]; is {
		s.unholdLocked(e.demand.Pod)
	}
	maps.DeleteFunc(s.left, func(one device.Pod, _ bool) bool { return one.Namespace == pod.Namespace && one.Name == pod.Name })
}

// hasLocked reports whether the store has the pod, and whether another pod has its UID. Two pods have the same UID only if
// one of them pretends to be a mirror pod. The first one keeps the UID until it ends.
func (s *store) hasLocked(pod device.Pod) (has, taken bool) {
	e, known := s.pods[pod.UID]
	has = known && e.demand.Pod == pod
	return has, known && !has
}

// dropLocked forgets a pod, and reports it to the Sink if the store had it.
func (s *store) dropLocked(pod device.Pod) {
	delete(s.left, pod)
	s.unholdLocked(pod)
	if has, _ := s.hasLocked(pod); has {
		e := s.pods[pod.UID]
		s.size -= e.size
		delete(s.pods, pod.UID)
		s.outlivesLocked(e)
		s.sink.Drop(pod.UID)
	}
}

// outlivesLocked notes a pod that has left the API server, if the runtime still has it, and forgets those that it has no longer.
func (s *store) outlivesLocked(e entry) {
	if e.confined {
		s.outlived[e.demand.Pod.UID] = e.demand.Pod
	}
	maps.DeleteFunc(s.outlived, func(uid device.PodUID, _ device.Pod) bool { return !s.runtime.Has(uid) })
}

// Replace receives a full list. Pods that Fetch has read in a newer version than the list's stay, unless versions have gone back.
// Those that are known come first, then those that the kubelet has admitted: pods that were left out do not displace them. Of several
// pods with one UID the first counts, of new ones the oldest.
func (s *store) Replace(list []any, version string) {
	at := kube.ParseVersion(version)
	listed := make([]entry, 0, len(list))
	for _, obj := range list {
		if seen, ok := s.reader.pod(obj); ok && (!seen.ended || seen.mirror) {
			listed = append(listed, entry{podState: seen})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, wentBack := s.pods, at < s.passed
	rank := func(e entry) int {
		switch was, known := before[e.demand.Pod.UID]; {
		case known && was.demand.Pod == e.demand.Pod:
			return 0
		case e.demand.Admitted:
			return 1
		}
		return 2
	}
	slices.SortFunc(listed, func(a, b entry) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), a.demand.Created.Compare(b.demand.Created), cmp.Compare(a.demand.Pod.Namespace, b.demand.Pod.Namespace), cmp.Compare(a.demand.Pod.Name, b.demand.Pod.Name))
	})
	s.pods, s.held, s.left, s.size, s.mirrors, s.passed = map[device.PodUID]entry{}, map[types.NamespacedName]entry{}, map[device.Pod]bool{}, 0, 0, at
	var demands []device.PodDemand
	keep := func(e entry) {
		switch _, taken := s.pods[e.demand.Pod.UID]; {
		case e.mirror && (taken || e.ended || !s.shownLocked(&e, before[e.demand.Pod.UID])):
			s.holdLocked(e)
		case !taken && s.keepLocked(&e):
			demands = append(demands, e.demand)
		}
	}
	for _, e := range listed {
		keep(e)
	}
	for _, e := range before {
		if e.ahead > at && !wentBack {
			keep(e)
		}
	}
	for uid, e := range before {
		if _, still := s.pods[uid]; !still {
			s.outlivesLocked(e)
		}
	}
	s.sink.Replace(demands)
}

// Bookmark records that the watch has delivered everything up to a version.
func (s *store) Bookmark(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, kube.ParseVersion(version))
}

// knows reports whether the Sink has a pod that the runtime has. It binds a mirror pod that has not counted so far.
func (s *store) knows(pod device.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has, _ := s.hasLocked(pod)
	return has || s.countsLocked(pod)
}

// shown returns the pods that request devices, as the API server shows them.
func (s *store) shown() map[device.PodUID]device.ShownPod {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[device.PodUID]device.ShownPod, len(s.pods))
	for uid, e := range s.pods {
		if e.shown.Object != "" {
			all[uid] = e.shown
		}
	}
	return all
}

// named returns the pod of that UID.
func (s *store) named(uid device.PodUID) (device.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, known := s.pods[uid]; known {
		return e.demand.Pod, true
	}
	pod, known := s.outlived[uid]
	return pod, known
}

// confined reports whether the pod is known, and has nothing of the host's.
func (s *store) confined(uid device.PodUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, known := s.pods[uid]; known {
		return e.confined
	}
	_, outlived := s.outlived[uid]
	return outlived
}

// account returns the name of a pod's service account, if the store has the pod.
func (s *store) account(pod device.Pod) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if has, _ := s.hasLocked(pod); !has {
		return ""
	}
	return s.pods[pod.UID].account
}

// fetched receives a pod from Fetch. It returns ErrNotFound if another pod has its UID, or if the pod has ended meanwhile: the watch
// has passed the version that Fetch has read, and has not delivered the pod. A *device.Refusal says that there is no room for it.
func (s *store) fetched(seen podState) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := entry{podState: seen, ahead: seen.version}
	switch has, taken := s.hasLocked(seen.demand.Pod); {
	case has, s.countsLocked(seen.demand.Pod):
	case taken, seen.version <= s.passed && !s.left[seen.demand.Pod], !s.shownLocked(&e, s.pods[e.demand.Pod.UID]):
		return ErrNotFound
	case !s.bindLocked(e):
		return device.Refuse(device.PodTooLarge, nil, "the requests of this node's pods take more than %d MiB together; the pod waits until others have ended", maxPodsSize>>20)
	}
	return nil
}
