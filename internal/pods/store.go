package pods

import (
	"cmp"
	"slices"
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// store holds the active pods of this node and decides the calls to the Sink. It is the reflector's store: its methods never
// fail, since no error there could be fixed by a retry.
type store struct {
	reader reader
	sink   Sink

	mu   sync.Mutex // guards what follows; held while the Sink is called, never across I/O
	pods map[device.PodUID]entry
	// passed is the version up to which the watch has delivered everything.
	passed uint64
}

// An entry is one active pod.
type entry struct {
	demand device.PodDemand
	// account is the name of the pod's service account.
	account string
	// ahead is the version in which Fetch has read the pod; 0 once the watch has delivered it too.
	ahead uint64
}

// Add receives a new pod from the watch.
func (s *store) Add(obj any) error { return s.Update(obj) }

// Update receives a pod from the watch.
func (s *store) Update(obj any) error {
	seen, ok := s.reader.pod(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, seen.version)
	switch _, taken := s.hasLocked(seen.demand.Pod); {
	case taken:
	case seen.ended:
		s.dropLocked(seen.demand.Pod)
	default:
		s.pods[seen.demand.Pod.UID] = entry{demand: seen.demand, account: seen.account}
		s.sink.Bind(seen.demand)
	}
	return nil
}

// Delete receives the deletion of a pod from the watch.
func (s *store) Delete(obj any) error {
	pod, version, ok := s.reader.deleted(obj)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, version)
	if pod.UID != "" {
		s.dropLocked(pod)
		return nil
	}
	for _, e := range s.pods { // a tombstone without the object: only the name is left
		if e.demand.Pod.Namespace == pod.Namespace && e.demand.Pod.Name == pod.Name {
			s.dropLocked(e.demand.Pod)
		}
	}
	return nil
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
	if has, _ := s.hasLocked(pod); has {
		delete(s.pods, pod.UID)
		s.sink.Drop(pod.UID)
	}
}

// Replace receives a full list. Pods that Fetch has read in a newer version than the list's stay. Of several pods with one
// UID the oldest counts.
func (s *store) Replace(list []any, version string) error {
	at := kube.ParseVersion(version)
	demands := make([]device.PodDemand, 0, len(list))
	accounts := make(map[device.Pod]string, len(list))
	for _, obj := range list {
		if seen, ok := s.reader.pod(obj); ok && !seen.ended {
			demands = append(demands, seen.demand)
			accounts[seen.demand.Pod] = seen.account
		}
	}
	slices.SortFunc(demands, func(a, b device.PodDemand) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	})
	pods := map[device.PodUID]entry{}
	demands = slices.DeleteFunc(demands, func(d device.PodDemand) bool {
		_, taken := pods[d.Pod.UID]
		if !taken {
			pods[d.Pod.UID] = entry{demand: d, account: accounts[d.Pod]}
		}
		return taken
	})
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

// Bookmark records that the watch has delivered everything up to a version.
func (s *store) Bookmark(version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = max(s.passed, kube.ParseVersion(version))
	return nil
}

// Resync is never called.
func (s *store) Resync() error { return nil }

// knows reports whether the Sink has the pod.
func (s *store) knows(pod device.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	has, _ := s.hasLocked(pod)
	return has
}

// named returns the pod of that UID.
func (s *store) named(uid device.PodUID) (device.Pod, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, known := s.pods[uid]
	return e.demand.Pod, known
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

// fetched receives an active pod from Fetch. It returns false if another pod has its UID, or if the pod has ended meanwhile:
// the watch has passed the version that Fetch has read, and the store does not have the pod.
func (s *store) fetched(seen podState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch has, taken := s.hasLocked(seen.demand.Pod); {
	case has:
		return true
	case taken, seen.version <= s.passed:
		return false
	}
	s.pods[seen.demand.Pod.UID] = entry{demand: seen.demand, account: seen.account, ahead: seen.version}
	s.sink.Bind(seen.demand)
	return true
}
