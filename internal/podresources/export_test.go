package podresources

import "time"

// SetReadLimit makes readers of a watch too slow sooner.
func (s *Server) SetReadLimit(d time.Duration) { s.readLimit = d }

// Alone has a server take the test, in which the kubelet is, for another process.
func (s *Server) Alone() { s.self = 0 }

// What tests are about.
const (
	ClientBurst   = clientBurst
	ClientWatches = clientWatches
)

// ClientConnections is how many connections one client may have at once.
var ClientConnections = connections.ServedPerClient

// MaxUnreadOfClient is how much one client may leave unread before it waits.
const MaxUnreadOfClient = maxUnreadOfClient

// Unread returns the bytes of answers that no client has read.
func (s *Server) Unread() int {
	s.clients.mu.Lock()
	defer s.clients.mu.Unlock()
	return s.clients.unread
}
