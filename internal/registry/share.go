package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

// The plugins of one pod may have as much of plugins.maxResources and plugins.maxTotalBytes as they leave free: one pod alone has half of them at most, two
// have a third each, and n pods that take all they can leave one part in n+1 to others. One resource is always allowed. The pod's own lost resources count, and are forgotten for others
// of it; those of others do not, since they make room. A list that does not grow is always allowed.
//
// A plugin pod's own directory shows the pod. In the common directory, the cgroup of the process that listens at the plugin's socket shows the pod. What runs outside of pods has no such limit.

// metLocked notes whose process answers at the plugin's socket.
func (l *registration) metLocked(on *session) {
	if l.location.pod.Known() {
		return
	}
	if l.pod = ""; connlimit.IsPod(on.process) {
		l.pod = on.process
	}
}

// whose names the pod in messages.
func (l *registration) whose() string {
	if l.location.pod.Known() {
		return "pod " + l.location.pod.String()
	}
	return l.pod
}

// A part is how much of a limit is in use: by one pod's plugins, and by all.
type part struct{ own, all int }

// add adds what a resource uses. Lost resources of others make room.
func (p *part) add(n int, own, lost bool) {
	if own || !lost {
		p.all += n
	}
	if own {
		p.own += n
	}
}

// exceeds reports whether the pod would have more than it leaves free.
func (p part) exceeds(limit int) bool { return p.own > limit-p.all }

// checkShareLocked fails if a new resource is one too many of its pod.
func (r *Registry) checkShareLocked(l *registration) error {
	uses := part{1, 1}
	for _, s := range r.resources {
		uses.add(1, s.registration.pod == l.pod, s.lost())
	}
	if l.pod == "" || uses.own == 1 || !uses.exceeds(r.cfg.MaxResources) {
		return nil
	}
	return l.exceeds(uses, r.cfg.MaxResources, "plugins.maxResources")
}

// lost reports whether the resource has no plugin, so that it makes room for others.
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
