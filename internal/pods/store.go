package pods

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// store holds the active pods of this node and decides what the Sink hears. It is the reflector's store: its methods
// never fail, since there is nothing that a retry would mend.
type store struct {
	reader reader
	sink   Sink

	mu   sync.Mutex // guards what follows; held while the Sink is called, never across I/O
	pods map[device.PodUID]entry
	// passed is the version up to which the watch has shown everything there was.
	passed uint64
}

// An entry is one active pod.
type entry struct {
	demand device.PodDemand
	// ahead is the version in which Fetch has read the pod; 0 once the watch has shown it too.
	ahead uint64
}

// Add takes a new pod from the watch.
func (s *store) Add(obj any) error { return s.Update(obj) }

// Update takes a pod from the watch.
func (s *store) Update(obj any) error {
	seen, ok := s.reader.pod(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, seen.version)
	switch {
	case seen.local:
	case seen.ended:
		s.dropLocked(seen.demand.Pod.UID)
	default:
		s.pods[seen.demand.Pod.UID] = entry{demand: seen.demand}
		s.sink.Bind(seen.demand)
	}
	return nil
}

// Delete takes the end of a pod from the watch.
func (s *store) Delete(obj any) error {
	pod, version, ok := s.reader.deleted(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, version)
	if pod.UID != "" {
		s.dropLocked(pod.UID)
		return nil
	}
	for uid, e := range s.pods { // a tombstone without the object: only the name is left
		if e.demand.Pod.Namespace == pod.Namespace && e.demand.Pod.Name == pod.Name {
			s.dropLocked(uid)
		}
	}
	return nil
}

// dropLocked forgets a pod, and tells the Sink if it knew of it.
func (s *store) dropLocked(uid device.PodUID) {
	if _, ok := s.pods[uid]; ok {
		delete(s.pods, uid)
		s.sink.Drop(uid)
	}
}

// Replace takes a full list. Pods that Fetch has read in a newer version than the list's survive it.
func (s *store) Replace(list []any, version string) error {
	at := kube.ParseVersion(version)
	pods := map[device.PodUID]entry{}
	demands := make([]device.PodDemand, 0, len(list))
	for _, obj := range list {
		if seen, ok := s.reader.pod(obj); ok && !seen.ended && !seen.local {
			pods[seen.demand.Pod.UID] = entry{demand: seen.demand}
			demands = append(demands, seen.demand)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, e := range s.pods {
		if _, listed := pods[uid]; !listed && e.ahead > at {
			pods[uid] = e
			demands = append(demands, e.demand)
		}
	}
	s.pods, s.passed = pods, at
	s.sink.Replace(demands)
	return nil
}

// Bookmark takes the word that the watch has shown everything up to a version.
func (s *store) Bookmark(version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, kube.ParseVersion(version))
	return nil
}

// Resync is asked for by no one.
func (s *store) Resync() error { return nil }

// knows tells whether the Sink has the pod.
func (s *store) knows(uid device.PodUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.pods[uid]
	return ok
}

// fetched takes an active pod from Fetch. It gives false if the pod has ended meanwhile: the watch has passed the
// version that Fetch has read, and the pod is not here.
func (s *store) fetched(seen sight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	uid := seen.demand.Pod.UID
	if _, ok := s.pods[uid]; ok {
		return true
	}
	if seen.version <= s.passed {
		return false
	}
	s.pods[uid] = entry{demand: seen.demand, ahead: seen.version}
	s.sink.Bind(seen.demand)
	return true
}
