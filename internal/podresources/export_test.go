package podresources

import "time"

// SetReadLimit makes readers of a watch too slow sooner.
func (s *Server) SetReadLimit(d time.Duration) { s.readLimit = d }

// What tests are about.
const (
	ClientBurst       = clientBurst
	ClientConnections = clientConnections
)
