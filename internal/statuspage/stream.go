package statuspage

import (
	"fmt"
	"net/http"
	"time"
)

// writeLimit bounds the sending of one event to a browser.
const writeLimit = 10 * time.Second

// events sends the tag of the newest page to a browser: at once, after each change, and at each beat.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("All %d streams are in use; reload the page from time to time.", maxStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	// The server's limits are meant for answers that end. Its read limit would end the request's context, too.
	on := http.NewResponseController(w)
	if err := on.SetReadDeadline(time.Time{}); err != nil {
		p.cfg.Log.Error("cannot update status page", "err", err)
		return
	}
	for {
		l, err := p.view(r.Context())
		if err != nil {
			return // the browser then requests the page, which has the error
		}
		if err := on.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "data: %s\n\n", l.tag); err != nil {
			return
		}
		if err := on.Flush(); err != nil {
			return
		}
		if !l.pass(r) {
			return
		}
	}
}

// pass waits until there may be another rendering, or for a beat. It returns false if the browser or the daemon ends the request
// before.
func (l *rendering) pass(r *http.Request) bool {
	select {
	case <-time.After(min(time.Until(l.fresh), beat)):
	case <-r.Context().Done():
		return false
	}
	select {
	case <-l.updated:
	case <-time.After(time.Until(l.made.Add(beat))):
	case <-r.Context().Done():
		return false
	}
	return true
}
