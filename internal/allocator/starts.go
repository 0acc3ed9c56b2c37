package allocator

import (
	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// starts lets containers start without the allocator's lock, which a start may not get in time: a refused start ends a pod that is never restarted. Only those in
// question wait for it.
type starts struct {
	mu       locks.Mutex[locks.Leaf]
	question map[string]bool // by the runtime's IDs: containers that are barred, or that the runtime has listed as created and that say they have devices
	passed   int             // starts that are not recorded yet
}

// listed replaces those in question by what the runtime lists.
func (s *starts) listed(all []device.Running) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.question
	s.question = map[string]bool{}
	for _, r := range all {
		if r.Idle && (before[r.ID] || len(r.Stamp)+len(r.Digests) > 0) {
			s.question[r.ID] = true
		}
	}
}

// pass reports whether a container may start as it is. Its start is recorded later.
func (s *starts) pass(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.question[id] {
		return false
	}
	s.passed++
	return true
}

// recorded ends what pass began.
func (s *starts) recorded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed--
}

// bar puts a pod's containers in question, unless any start is not recorded yet: it may be one of theirs.
func (s *starts) bar(all containers.Pod) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.passed > 0 && len(all) > 0 {
		return false
	}
	for id := range all {
		lists.Put(&s.question, id, true)
	}
	return true
}

// forget drops a container that is gone.
func (s *starts) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.question, id)
}
