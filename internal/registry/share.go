package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

// The plugins of one pod may have as much of plugins.maxResources and plugins.maxTotalBytes as they leave free: one pod alone has half of them at most,
// and each further pod that takes all it can has half of the rest. A pod's first resource is allowed as long as there is a place, and one part in
// firstPlaces is for first resources alone. The pod's own lost resources count, and are forgotten for others of it; those of others do not count if they
// can be forgotten. A list that does not grow is always allowed.
//
// A plugin pod's own directory shows the pod. In the common directory, the cgroup of the process that listens at the plugin's socket shows the pod. What
// runs outside of pods has no such limit.

// called notes which process has registered the plugin.
func (l *registration) called(client string) {
	if !l.location.pod.Known() {
		l.caller, l.pod = client, podOf(client)
	}
}

// metLocked notes whose process answers at the plugin's socket. If that has ended, and has left the socket to others, the process that has registered the plugin
// counts.
func (l *registration) metLocked(on *session) {
	if !l.location.pod.Known() && !(connlimit.HasEnded(on.process) && l.caller != "") {
		l.pod = podOf(on.process)
	}
}

// podOf returns a client that is a pod, or may be; empty: it is none.
func podOf(client string) string {
	if connlimit.IsPod(client) {
		return client
	}
	return ""
}

// whose names the pod in messages.
func (l *registration) whose() string {
	if l.location.pod.Known() {
		return "pod " + l.location.pod.String()
	}
	return l.pod
}

// firstPlaces is the inverse of the part of plugins.maxResources that only first resources of pods may use.
const firstPlaces = 16

// A part is how much of a limit is in use: by one pod's plugins, by all, and by lost resources of others that can be forgotten.
type part struct{ own, all, lost int }

// add adds what a resource uses. forgettable: it is lost, and makes room for others.
func (p *part) add(n int, own, forgettable bool) {
	if own {
		p.own += n
	}
	if forgettable && !own {
		p.lost += n
	} else {
		p.all += n
	}
}

// exceeds reports whether the pod would have more than it leaves free.
func (p part) exceeds(limit int) bool { return p.own > limit-p.all }

// checkShareLocked fails if a new resource is one too many of its pod. forgettable: see Registry.forgettable.
func (r *Registry) checkShareLocked(l *registration, forgettable map[device.ResourceName]bool) error {
	uses := part{own: 1, all: 1}
	for name, s := range r.resources {
		uses.add(1, s.registration.pod == l.pod, s.lost() && forgettable[name])
	}
	limit := r.cfg.MaxResources - r.cfg.MaxResources/firstPlaces
	if l.pod == "" || uses.own == 1 || !uses.exceeds(limit) {
		return nil
	}
	return l.exceeds(uses, limit, "plugins.maxResources")
}

// lost reports whether the resource has no plugin, so that it may make room for others.
func (s *resourceState) lost() bool { return s.state == device.Lost && s.session == nil }

// exceeds returns the error for a resource or a list with which the pod's plugins would have more than they leave free.
func (l *registration) exceeds(p part, limit int, of string) error {
	return &shareError{resource: l.resource, client: l.pod, pod: l.whose(), would: p.own, leaves: max(0, limit-p.all), of: of}
}

// A shareError reports such a resource or list.
type shareError struct {
	resource      device.ResourceName
	client, pod   string // as connlimit names the pod, and as messages do
	would, leaves int    // what the pod's plugins would have, and leave free
	of            string // the limit of all
}

func (e *shareError) Error() string {
	return fmt.Sprintf("with %s, the plugins of %s would have %d of %s and leave %d free; one pod's plugins may have as much as they leave free: "+
		"raise the limit, or forget resources with devmgrd forget", e.resource, e.pod, e.would, e.of, e.leaves)
}
