package dra

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
)

// A verb is a kind of write.
type verb string

const (
	create verb = "create"
	update verb = "update"
	remove verb = "delete"
)

// doing names the verbs in errors.
var doing = map[verb]string{create: "creating", update: "updating", remove: "deleting"}

// A pace decides when a pool's ResourceSlice may be written: once a second, and later after a failure.
type pace struct {
	written time.Time // the latest write
	created time.Time // the latest creation
	absent  bool      // devmgrd itself has removed the slice
	retry   loops.Backoff
	until   time.Time // no write before, after a failure
	err     error     // of the latest write; nil: it has succeeded
	taken   time.Time // when the slice's name was found to be another object's; zero: it is not
}

// takenTime is how long a slice is created again under its own name that another object has: the watch may be behind, and show that it is the slice.
const takenTime = 2 * time.Second

// renames reports whether the slice is created under another name: another node's token may take the one that it should have.
func (p *pace) renames(now time.Time) bool {
	return !p.taken.IsZero() && now.Sub(p.taken) >= takenTime
}

func newPace() *pace { return &pace{retry: loops.Backoff{First: firstRetry, Last: lastRetry}} }

// due returns when the next write may be. A slice that another client removed is created again at once: the kubelet removes all slices
// of its node when it starts. A client that keeps removing it is answered once a second.
func (p *pace) due(v verb) time.Time {
	from := p.written
	if v == create && !p.absent {
		from = p.created
	}
	if next := from.Add(writeInterval); !from.IsZero() && next.After(p.until) {
		return next
	}
	return p.until
}

// succeeded records a write.
func (p *pace) succeeded(v verb, now time.Time) {
	p.written = now
	if v == create {
		p.created = now
	}
	p.absent = v == remove
	p.settled()
}

// settled records that there is nothing to write.
func (p *pace) settled() {
	p.until, p.err = time.Time{}, nil
	p.retry.Reset()
}

// failed records a write that has failed.
func (p *pace) failed(err error, now time.Time) {
	p.until, p.err = now.Add(p.retry.Next()), err
	if !p.taken.IsZero() && !p.renames(now) {
		p.until = loops.Earliest(p.until, p.taken.Add(takenTime))
	}
}
