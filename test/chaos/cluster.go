package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// shortLimit is how long the Node may show less than its pods ask for before that counts: a pod's binding and the Node's
// number reach us on two ways.
const shortLimit = 3 * time.Second

// reconnect is how long after an outage of the API server a client may take to find it again.
const reconnect = 5 * time.Second

// shaky is how long after their cause devices may be out of service: a flapping one is suspended, and those who look for other processes and were
// away are asked again after a pause.
const shaky = time.Minute

// A number that is too high falls after window, with devmgrd, and after as much more as the longest fall has lasted that a
// rise has taken back since devmgrd started (decision 0002). Two falls are 10 s apart, a resource is off the Node for a
// second before, and a client that has found the API server away tries again after up to 5 s: slack. The kubelet is faster.
const (
	window  = 5 * time.Second
	longest = 3 * time.Minute
	slack   = 17 * time.Second
	// standstill is how long after an outage of the API server no number falls, and none rises from 0.
	standstill = 30 * time.Second
)

// falls follows the number that the Node should show.
type falls struct {
	publisher int // its process: what the one before it knew is forgotten
	number    int64
	open      []drop // falls that no rise has taken back, from the highest number on
	lasted    time.Duration
}

type drop struct {
	from int64
	at   time.Time
}

// want notes which number the Node should show, and reports whether that has changed.
func (f *falls) want(number int64, publisher int, now time.Time) bool {
	if publisher != f.publisher {
		*f = falls{publisher: publisher, number: number}
		return true
	}
	was := f.number
	f.number = number
	if number < was {
		f.open = append(f.open, drop{was, now})
	}
	for n := len(f.open) - 1; n >= 0 && f.open[n].from <= number; n-- {
		f.lasted = max(f.lasted, now.Sub(f.open[n].at))
		f.open = f.open[:n]
	}
	return number != was
}

// limit is how long a number may be too high after the last change of what it should be.
func (f *falls) limit() time.Duration { return min(f.lasted+window, longest) + slack }

// An apiView watches what the API server says of pods and of the Node.
type apiView struct {
	cluster   *cluster.Cluster
	say       func(kind, what string)
	publisher func() int  // the process that publishes the Node's number
	awake     func() bool // those whose word the Node's number needs: the plugin, and who publishes it
	pinned    func() bool // slices cannot be written, and so the number has to stay
	slices    func() bool // the resource is offered through DRA
	// disturbed reports whether devices may rightly be out of service.
	disturbed  func() bool
	shakes     func() bool                    // what puts devices out of service for a while is at work
	shaken     time.Time                      // the last time it was
	claimed    func(pods map[string]bool) int // how many devices their claims name
	networks   *networks
	armed      bool    // the Node has shown the number, and nothing has happened that takes it away
	gone       lasting // the Node shows none
	failed     map[string]bool
	short      lasting   // the Node shows too little
	above      lasting   // it shows too much
	double     lasting   // it shows more than there has ever been
	overbooked time.Time // its pods asked for more than there is: the number falls when they end
	falls      falls
	outage     time.Time // the last time at which the API server could not be asked
}

// lasting is something that counts once it has been so for a while.
type lasting struct {
	since time.Time
	told  bool
}

// is reports whether it has just become so for longer than the limit.
func (l *lasting) is(so bool, now time.Time, limit time.Duration) bool {
	switch {
	case !so:
		*l = lasting{}
	case l.since.IsZero():
		l.since = now
	case now.Sub(l.since) > limit && !l.told:
		l.told = true
		return true
	}
	return false
}

// blind notes that the API server cannot be asked: what it was seen to show before may have changed since.
func (v *apiView) blind(now time.Time) {
	v.outage = now
	v.gone, v.short, v.above, v.double = lasting{}, lasting{}, lasting{}, lasting{}
}

// calm reports whether the API server has been there for so long that all its clients have found it, and for as much longer.
func (v *apiView) calm(now time.Time, longer time.Duration) bool {
	return now.Sub(v.outage) > reconnect+longer
}

// look looks once. While the API server is away there is nothing to see.
func (v *apiView) look(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	pods, err := v.cluster.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		v.blind(now)
		return
	}
	asked := int64(0)
	known := map[string]bool{}
	for _, p := range pods.Items {
		if failedForDevices(&p) && !v.failed[string(p.UID)] {
			v.failed[string(p.UID)] = true
			v.say(failed, fmt.Sprintf("pod %s: %s: %s", p.Name, p.Status.Reason, p.Status.Message))
		}
		if p.Spec.NodeName != "" && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			asked += limit(&p)
			known[p.Name] = true
		}
	}
	shown, there, err := v.shown(ctx)
	if err == nil && shown == 0 {
		err = v.tryWrite(ctx)
	}
	if err != nil {
		v.blind(now)
	}
	seen := err == nil && there
	if v.short.is(seen && shown < asked, now, shortLimit) {
		v.say(number, fmt.Sprintf("the Node shows %d, and its pods ask for %d", shown, asked))
	}
	usable := int64(readMood().usable())
	holders := holders()
	if failure := v.networks.read(); failure != nil {
		v.say(networked, failure.Error())
	}
	if v.shakes() {
		v.shaken = now
	}
	outOfService := now.Sub(v.shaken) < shaky || v.disturbed() || unlisted(holders) || v.networks.remain(known) || int64(v.claimed(known)) >= usable
	v.stays(shown, there, err, usable, outOfService, now)
	left := int64(0) // with containers whose pods have been deleted by force
	for _, h := range holders {
		if !known[h.pod] {
			left += int64(len(h.has))
		}
	}
	if v.falls.want(usable+asked+left, v.publisher(), now) {
		v.above = lasting{}
	}
	limit := v.falls.limit()
	if v.above.is(seen && shown > usable+asked+left && v.awake() && v.calm(now, standstill), now, limit) {
		v.say(promised, fmt.Sprintf("for %s the Node shows %d, its pods ask for %d, %d devices are usable, and containers of deleted pods have %d", limit, shown, asked, usable, left))
	}
	if asked > deviceCount {
		v.overbooked = now
	}
	if v.double.is(seen && shown > max(deviceCount, asked) && now.Sub(v.overbooked) > limit, now, shortLimit) {
		v.say(promised, fmt.Sprintf("the Node shows %d of %d devices, and its pods ask for %d", shown, deviceCount, asked))
	}
}

// stays looks whether the number stays on the Node: as long as a plugin serves that lists devices, whatever happens to another one, and as
// long as slices cannot be written. A devmgrd that was killed while it had the number off the Node, on its way to a lower one, does not count: the next one
// waits until no slice can be remembered, also if it is there before the API server is back to be asked. The number is rightly 0 while all devices may be
// out of service, and for a while after an outage.
func (v *apiView) stays(shown int64, there bool, err error, usable int64, outOfService bool, now time.Time) {
	bySlices := v.slices()
	switch {
	case usable == 0 || !v.awake() || bySlices && !v.pinned() || v.publisher() != v.falls.publisher:
		v.armed = false
	case err == nil && shown > 0:
		v.armed = true
	}
	none := !there || shown == 0 && !outOfService && !bySlices && v.calm(now, standstill)
	if v.gone.is(v.armed && err == nil && none && v.calm(now, 0), now, shortLimit) {
		v.say(away, fmt.Sprintf("the Node shows %d (%v), and %d devices are usable", shown, there, usable))
	}
}

// tryWrite fails if the Node's status cannot be written: an API server that has just started answers reads for up to 10 s before its admission lets
// writes through.
func (v *apiView) tryWrite(ctx context.Context) error {
	_, err := v.cluster.Client().CoreV1().Nodes().Patch(ctx, v.cluster.NodeName(), types.MergePatchType, []byte(`{"metadata":{"annotations":{"chaos.example/writable":""}}}`),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
	return err
}

// shown is the lesser of capacity and allocatable. A number that is not there is no number that falls short: a kubelet
// admits what it finds no number of. devmgrd takes one off the Node for a second before it shows a lower one.
func (v *apiView) shown(ctx context.Context) (n int64, there bool, err error) {
	node, err := v.cluster.Client().CoreV1().Nodes().Get(ctx, v.cluster.NodeName(), metav1.GetOptions{})
	if err != nil {
		return 0, false, err
	}
	capacity, shown := node.Status.Capacity[resourceName]
	allocatable, also := node.Status.Allocatable[resourceName]
	return min(capacity.Value(), allocatable.Value()), shown && also, nil
}

func limit(p *corev1.Pod) int64 {
	n := int64(0)
	for _, c := range p.Spec.Containers {
		q := c.Resources.Limits[resourceName]
		n += q.Value()
	}
	return n
}

// failedForDevices reports whether a kubelet has failed the pod for want of devices.
func failedForDevices(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed &&
		(strings.HasPrefix(p.Status.Reason, "OutOf") || p.Status.Reason == "UnexpectedAdmissionError" || p.Status.Reason == "TopologyAffinityError")
}
