package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

// The plugins of one pod may have as much of plugins.maxResources and plugins.maxTotalBytes as they leave free: one pod alone has half of them at most, two
// have a third each, and n pods that take all they can leave one part in n+1 to others. One resource is always allowed. Resources that are lost do not count, since they make room.
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

// exceeds reports whether the pod would have more than it leaves free.
func (p part) exceeds(limit int) bool { return p.own > limit-p.all }

// checkShareLocked fails if a new resource is one too many of its pod.
func (r *Registry) checkShareLocked(l *registration) error {
	uses := part{1, 1}
	for _, s := range r.resources {
		if s.lost() {
			continue
		}
		if uses.all++; s.registration.pod == l.pod {
			uses.own++
		}
	}
	if l.pod == "" || uses.own == 1 || !uses.exceeds(r.cfg.MaxResources) {
		return nil
	}
	return &shareError{resource: l.resource, pod: l.whose(), has: uses.own - 1, more: 1, free: r.cfg.MaxResources - uses.all + 1, of: "plugins.maxResources"}
}

// lost reports whether the resource has no plugin, so that it makes room for others.
func (s *resourceState) lost() bool { return s.state == device.Lost && s.session == nil }

// A shareError reports a resource or a list with which the plugins of one pod would have more than they leave free.
type shareError struct {
	resource        device.ResourceName
	pod             string
	has, more, free int    // of what the pod's plugins have, would have more, and is free before
	of              string // the limit of all
}

func (e *shareError) Error() string {
	return fmt.Sprintf("%s would use %d more of %s, of which %d are free and the plugins of %s have %d; one pod's plugins may have as much as they leave free: "+
		"raise the limit, or forget resources with devmgrd forget", e.resource, e.more, e.of, e.free, e.pod, e.has)
}
