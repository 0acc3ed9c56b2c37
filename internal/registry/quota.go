package registry

import (
	"errors"
	"fmt"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

// A pod's quota is its plugins' part of plugins.maxResources and plugins.maxTotalBytes: they may have half of what the others leave. One pod alone has half at
// most, and each further pod that takes all it can has half of the rest. A pod's first resource is allowed as long as there is a place, and one part in
// firstPlaces is for first resources alone. A list that does not grow is always allowed.
//
// A resource that has lost its plugin counts as long as it is kept, see room.go: in the quotas of its pod and of all pods of its account, since a pod may be
// deleted and replaced again and again. One that can be forgotten counts in its pod's quota alone, and makes room for other resources of that pod.
//
// A pod may take a resource over from another one. If that is of another account, the resource needs room in the pod's quota, as if the other pod had left.
// Within an account there is always room, as a roll-out needs it, and the resource counts in the quotas of all pods of the account from then on. Otherwise
// two pods could hand resources to each other, and each would count less than it has had.
//
// A plugin pod's own directory shows the pod. In the common directory, the cgroup of the process that listens at the plugin's socket shows the pod. What
// runs outside of pods has no quota.

// quotaOf returns the quota of a process, as connlimit names it.
func (r *Registry) quotaOf(client string) (q device.Quota) {
	if !connlimit.IsPod(client) {
		return q
	}
	q.Pod = client
	if uid, is := connlimit.PodOf(client); is && r.neighbours.Accounts != nil {
		if pod, known := r.neighbours.Accounts.Named(uid); known {
			q.Account = accountOf(device.PluginPod{Pod: pod, ServiceAccount: r.neighbours.Accounts.ServiceAccount(pod)})
		}
	}
	return q
}

// accountOf names the service account of a pod; empty: it is not known.
func accountOf(p device.PluginPod) string {
	if p.ServiceAccount == "" {
		return ""
	}
	return p.Namespace + "/" + p.ServiceAccount
}

// called notes which process has registered the plugin.
func (l *registration) called(client string) {
	if !l.location.pod.Known() {
		l.caller, l.quota = client, l.registry.quotaOf(client)
	}
}

// quotaAt returns the quota of the process that answers at the plugin's socket. If that process has ended, and has left the socket to others, the plugin's
// quota stays: that of the process that has registered it, or that answered before.
func (l *registration) quotaAt(on *session) device.Quota {
	if l.location.pod.Known() || connlimit.HasEnded(on.process) && (l.caller != "" || l.quota.Pod != "") {
		return l.quota
	}
	return on.quota
}

// meetLocked notes the quota of the process that answers at the socket of a registered plugin. If it is another pod's than before, that pod takes the plugin over.
func (r *Registry) meetLocked(l *registration, on *session, forgettable map[device.ResourceName]bool) error {
	former, now, s := l.quota, l.quotaAt(on), r.resources[l.resource]
	if s == nil || s.registration != l && !s.reserves(l) || now == former {
		return nil // it has been replaced
	}
	l.quota = now
	if former.Pod != "" && former.Pod != now.Pod {
		if err := r.checkHandoverLocked(l, s, former, forgettable); err != nil {
			l.quota = former
			return err
		}
	}
	r.saver.note(l.resource)
	return nil
}

// checkHandoverLocked fails if a registered plugin is one too many of its pod, after former.
func (r *Registry) checkHandoverLocked(l *registration, s *resourceState, former device.Quota, forgettable map[device.ResourceName]bool) error {
	if related(former, l.quota) {
		s.account = l.quota.Account
		return nil
	}
	if err := r.fitsQuotaLocked(l, part{}, forgettable); err != nil {
		return err
	}
	err := r.fitsLocked(l, s.uses(), forgettable)
	if errors.As(err, new(*quotaError)) {
		return err
	}
	return nil
}

// whose names the pod in messages.
func (l *registration) whose() string {
	if l.location.pod.Known() {
		return "pod " + l.location.pod.String()
	}
	return l.quota.Pod
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

// checkQuotaLocked fails if a resource is one too many of its pod: a new one, or one of pods of other accounts. forgettable: see Registry.forgettable.
func (r *Registry) checkQuotaLocked(l *registration, forgettable map[device.ResourceName]bool) error {
	s := r.resources[l.resource]
	switch {
	case s == nil:
		return r.fitsQuotaLocked(l, part{own: 1, all: 1}, forgettable)
	case related(s.registration.quota, l.quota):
		return nil
	}
	uses := part{own: 1}
	if slices.ContainsFunc(s.reserve, func(of *registration) bool { return of.quota.Pod == l.quota.Pod }) {
		uses.own = 0 // it counts already
	}
	err := r.fitsQuotaLocked(l, uses, forgettable)
	if err == nil && !s.queues(l) { // it has the former list until it sends one
		err = r.fitsLocked(l, []use{{of: l, weight: s.weight}}, forgettable)
	}
	if errors.As(err, new(*quotaError)) {
		return err
	}
	return nil
}

// fitsQuotaLocked fails if a pod would have too many resources with those in uses.
func (r *Registry) fitsQuotaLocked(l *registration, uses part, forgettable map[device.ResourceName]bool) error {
	for _, s := range r.resources {
		own := l.owns(s, s.registration, forgettable) || slices.ContainsFunc(s.reserve, func(of *registration) bool { return l.owns(s, of, forgettable) })
		uses.add(1, own, s.lost() && forgettable[s.resource])
	}
	limit := r.cfg.MaxResources - r.cfg.MaxResources/firstPlaces
	if l.quota.Pod == "" || uses.own == 1 || !uses.exceeds(limit) {
		return nil
	}
	return l.exceeds(uses, limit, "plugins.maxResources")
}

// owns reports whether a plugin of a resource counts in l's quota.
func (l *registration) owns(s *resourceState, of *registration, forgettable map[device.ResourceName]bool) bool {
	if of.quota.Pod == l.quota.Pod {
		return true
	}
	handed := s.account != "" && s.account == l.quota.Account
	return (handed || s.lost() && related(of.quota, l.quota)) && !forgettable[s.resource]
}

// related reports whether two quotas are of one pod, or of pods of one account.
func related(a, b device.Quota) bool {
	return a.Pod == b.Pod || a.Account != "" && a.Account == b.Account
}

// passLocked makes a registration the current one. What a pod has had from another one of its account counts for that account until no plugin of it is left.
func (s *resourceState) passLocked(to *registration) {
	from := s.registration.quota
	s.registration = to
	switch {
	case from.Pod == to.quota.Pod:
	case related(from, to.quota):
		s.account = to.quota.Account
	case !slices.ContainsFunc(s.all(), func(l *registration) bool { return l.quota.Account == s.account }):
		s.account = ""
	}
}

// lost reports whether the resource has no plugin, so that it may make room for others.
func (s *resourceState) lost() bool { return s.state == device.Lost && !s.present() }

// exceeds returns the error for a resource or a list with which the pod's plugins would have more than they leave free.
func (l *registration) exceeds(p part, limit int, of string) error {
	return &quotaError{resource: l.resource, client: l.quota.Pod, pod: l.whose(), would: p.own, leaves: max(0, limit-p.all), of: of}
}

// A quotaError reports such a resource or list.
type quotaError struct {
	resource      device.ResourceName
	client, pod   string // as connlimit names the pod, and as messages do
	would, leaves int    // what the pod's plugins would have, and leave free
	of            string // the limit of all
}

func (e *quotaError) Error() string {
	return fmt.Sprintf("with %s, the plugins of %s would have %d of %s and leave %d free; one pod's plugins may have as much as they leave free: "+
		"raise the limit, or forget resources with devmgrd forget", e.resource, e.pod, e.would, e.of, e.leaves)
}
