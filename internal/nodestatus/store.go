package nodestatus

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// store holds the newest state of devmgrd's Node from the watch or from a patch's answer.
type store struct {
	relisted chan struct{} // holds one token when there has been a full list: the API server is back

	mu      locks.Mutex[locks.Leaf] // guards what follows; never held across I/O
	changed []chan struct{}         // each holds one token when the state has changed since its reader's last look
	nodes   kube.Objects[nodeState] // devmgrd's, or none
	listed  bool                    // there has been a full list, so that a missing Node is known to be missing
}

func newStore() *store {
	return &store{relisted: make(chan struct{}, 1)}
}

// follow returns a channel that gets a token when the state changes. Each reader needs one of its own.
func (s *store) follow() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := make(chan struct{}, 1)
	s.changed = append(s.changed, c)
	loops.Signal(c) // the reader has seen nothing yet
	return c
}

// signalLocked reports a change to all readers.
func (s *store) signalLocked() {
	for _, c := range s.changed {
		loops.Signal(c)
	}
}

// now returns the newest state; known is false before the first list.
func (s *store) now() (newest nodeState, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range s.nodes.All() {
		newest = node
	}
	return newest, s.listed
}

// observe stores a state of the Node from an answer of the API server, unless it is older than the newest.
func (s *store) observe(n nodeState) {
	s.mu.Lock()
	s.nodes.Answered(n.name, n.version, n)
	s.signalLocked()
	s.mu.Unlock()
}

// Update receives a change from the watch.
func (s *store) Update(obj any) {
	if n, ok := obj.(*corev1.Node); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodes.Seen(n.Name, kube.ParseVersion(n.ResourceVersion), nodeStateOf(n))
		s.signalLocked()
	}
}

// Delete receives the deletion of the Node from the watch.
func (s *store) Delete(obj any) {
	if n, ok := obj.(*corev1.Node); ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodes.Deleted(n.Name, kube.ParseVersion(n.ResourceVersion))
		s.signalLocked()
	}
}

// Replace receives a full list, which holds devmgrd's Node or nothing.
func (s *store) Replace(list []any, version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes.Replace(kube.ParseVersion(version))
	for _, obj := range list {
		if n, ok := obj.(*corev1.Node); ok {
			s.nodes.Listed(n.Name, kube.ParseVersion(n.ResourceVersion), nodeStateOf(n))
		}
	}
	s.listed = true
	s.signalLocked()
	loops.Signal(s.relisted)
}

// Bookmark is part of kube.Store. Versions of other Nodes say nothing of this one.
func (s *store) Bookmark(string) {}
