package page

import (
	"fmt"
	"net/http"
	"time"
)

// writeLimit is how long one event may take on its way to a browser.
const writeLimit = 10 * time.Second

// events tells a browser the tag of the newest page: at once, whenever it is another one, and at each beat.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	select {
	case p.streams <- struct{}{}:
		defer func() { <-p.streams }()
	default:
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("There are %d streams already; ask for the page itself from time to time.", maxStreams), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	// The server's limits are those of an answer that ends. That of reading would end the request's context, too.
	on := http.NewResponseController(w)
	if err := on.SetReadDeadline(time.Time{}); err != nil {
		p.cfg.Log.Error("cannot update status page", "err", err)
		return
	}
	for {
		l, err := p.view(r.Context())
		if err != nil {
			return // the browser asks for the page then, and that tells
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

// pass waits until there may be another look, or for a beat. It returns false if the request ends before: the browser's end, or
// the daemon's.
func (l *rendering) pass(r *http.Request) bool {
	fresh := time.NewTimer(min(time.Until(l.fresh), beat))
	defer fresh.Stop()
	select {
	case <-fresh.C:
	case <-r.Context().Done():
		return false
	}
	old := time.NewTimer(time.Until(l.made.Add(beat)))
	defer old.Stop()
	select {
	case <-l.updated:
	case <-old.C:
	case <-r.Context().Done():
		return false
	}
	return true
}
