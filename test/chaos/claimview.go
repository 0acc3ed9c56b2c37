package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// twiceLimit is how long the resource may be a number of the Node and in slices: on the way back the slices are removed when devmgrd has
// listed all pods.
const twiceLimit = 10 * time.Second

// A claimView watches what the API server says of claims. Names of devices in claims are the plugin's IDs here: those are DNS labels.
type claimView struct {
	world *world
	twice lasting
	none  lasting // see offersNone
	maker int     // devmgrd's process: each has its pauses

	mu     sync.Mutex
	named  map[string]map[string]named // by pod and container
	ids    map[string][]string         // by claim: its devices
	failed map[types.UID]bool
}

// A named is what the claims of a container name.
type named struct {
	ids     []string // the devices
	besides int      // how many the container requests by the Node's number
}

// fits reports whether a container has the devices that its claims name, and as many others as it requests besides.
func (n named) fits(has []string) bool {
	return len(has) == len(n.ids)+n.besides && !slices.ContainsFunc(n.ids, func(id string) bool { return !slices.Contains(has, id) })
}

func newClaimView(w *world) *claimView {
	return &claimView{world: w, named: map[string]map[string]named{}, ids: map[string][]string{}, failed: map[types.UID]bool{}}
}

// of returns what the claims of a container name, and whether its pod has claims that have been seen.
func (v *claimView) of(pod, container string) (n named, known bool) {
	if v == nil {
		return n, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	n, known = v.named[pod][container]
	return n, known
}

// has reports whether a claim has a device, under whatever ID, as far as the claim has been seen.
func (v *claimView) has(claim, device string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	ids, known := v.ids[claim]
	return !known || slices.ContainsFunc(ids, func(id string) bool { return hardware(id) == device })
}

// count returns how many devices the claims of pods name.
func (v *claimView) count(pods map[string]bool) int {
	if v == nil {
		return 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[string]bool{}
	for pod := range pods {
		for _, n := range v.named[pod] {
			for _, id := range n.ids {
				all[id] = true
			}
		}
	}
	return len(all)
}

// look looks once. While the API server is away there is nothing to see.
func (v *claimView) look(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	api := v.world.Client()
	pods, err := api.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		v.none, v.twice = lasting{}, lasting{} // what was seen before may have changed since
		return
	}
	claims, err := api.ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	byName := map[string]*resourceapi.ResourceClaim{}
	for i := range claims.Items {
		c := &claims.Items[i]
		byName[c.Name] = c
		if c.Status.Allocation != nil {
			v.mu.Lock()
			v.ids[c.Name] = results(c, "")
			v.mu.Unlock()
		}
	}
	for _, p := range pods.Items {
		if all, known := chosen(&p, byName); known && p.Spec.NodeName != "" {
			v.mu.Lock()
			v.named[p.Name] = all
			v.mu.Unlock()
			if p.Status.Phase == corev1.PodFailed && p.DeletionTimestamp == nil && !failedForDevices(&p) && !v.failed[p.UID] {
				v.failed[p.UID] = true
				v.world.say(failed, fmt.Sprintf("pod %s: %s: %s", p.Name, p.Status.Reason, p.Status.Message))
			}
		}
	}
	devices, err := v.world.sliced(ctx)
	if err != nil {
		return
	}
	n, there, err := (&apiView{cluster: v.world.Cluster}).shown(ctx)
	if err == nil && v.twice.is(there && n > 0 && len(devices) > 0 && v.world.awake(), now, twiceLimit) {
		v.world.say(twice, fmt.Sprintf("for %s the Node shows %d, and the slices show %v", twiceLimit, n, devices))
	}
	if pid := v.world.devmgrd.Pid(); pid != v.maker {
		v.maker, v.none = pid, lasting{}
	}
	if v.none.is(err == nil && n == 0 && len(devices) == 0 && v.offersNone(pods.Items), now, nowhereLimit) {
		v.world.say(nowhere, fmt.Sprintf("for %s the Node shows no number, and there are no slices; %d devices are usable", nowhereLimit, readMood().usable()))
	}
}

// nowhereLimit is how long free devices may be neither in the number nor in the slices: on the way back the number follows the slices by ten
// seconds, and does not rise in the first 30 s of a devmgrd.
const nowhereLimit = time.Minute

// offersNone reports whether devices are free, and there is no reason to offer none: no pod waits for one, and slices can be written.
func (v *claimView) offersNone(pods []corev1.Pod) bool {
	free := int64(readMood().usable())
	for _, p := range pods {
		if p.Spec.NodeName != "" {
			free -= wants(&p)
			if !ready(&p) {
				return false
			}
		}
	}
	return free > 0 && v.world.awake() && !v.world.disturbed() && !v.world.unwritable.Load() && !inUseUnlisted()
}

// chosen returns what a pod's claims name for its containers, and whether it has claims that are all allocated and reserved for it.
func chosen(p *corev1.Pod, claims map[string]*resourceapi.ResourceClaim) (all map[string]named, known bool) {
	allocated := func(name string) (*resourceapi.ResourceClaim, bool) {
		c := claims[name]
		return c, c != nil && c.Status.Allocation != nil && slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == p.UID })
	}
	names := map[string]string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	all = map[string]named{}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names[c.Name] = *c.ResourceClaimName
		}
		known = true
		claim, ok := allocated(names[c.Name])
		if !ok {
			return nil, false
		}
		for _, one := range p.Spec.Containers {
			for _, use := range one.Resources.Claims {
				if use.Name == c.Name {
					n := all[one.Name]
					n.ids = append(n.ids, results(claim, use.Request)...)
					all[one.Name] = n
				}
			}
		}
	}
	extended := p.Status.ExtendedResourceClaimStatus
	if extended != nil {
		known = true
		claim, ok := allocated(extended.ResourceClaimName)
		if !ok {
			return nil, false
		}
		for _, m := range extended.RequestMappings {
			n := all[m.ContainerName]
			n.ids = append(n.ids, results(claim, m.RequestName)...)
			all[m.ContainerName] = n
		}
	}
	for _, one := range p.Spec.Containers {
		n := all[one.Name]
		if q := one.Resources.Limits[resourceName]; extended == nil {
			n.besides = int(q.Value())
		}
		slices.Sort(n.ids)
		all[one.Name] = n
	}
	return all, known
}

// results returns the devices of a claim, or of one of its requests.
func results(c *resourceapi.ResourceClaim, request string) (ids []string) {
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == driverName && (request == "" || r.Request == request) {
			ids = append(ids, r.Device)
		}
	}
	return ids
}

// unlisted reports whether the claims of a pod name a device that the plugin lists no longer. The pod waits for it then (DeviceGone).
func (v *claimView) unlisted(pod string) bool {
	if v == nil {
		return false
	}
	listed := append(readMood().ids(), longDevice)
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, n := range v.named[pod] {
		if slices.ContainsFunc(n.ids, func(id string) bool { return !slices.Contains(listed, id) }) {
			return true
		}
	}
	return false
}

// wants returns how many devices a pod asks for, in whatever way.
func wants(p *corev1.Pod) (n int64) {
	for _, c := range p.Spec.Containers {
		for _, e := range c.Env {
			if e.Name == wantsVariable {
				one := int64(0)
				_, _ = fmt.Sscan(e.Value, &one)
				n += one
			}
		}
	}
	return n
}

// shares returns how many of the devices that a pod asks for are those of a claim that exists without it.
func (w *world) shares(p *corev1.Pod) int64 { return int64(w.sizes[w.claimOf(p.Name)]) }

// takes returns how many more devices a pod takes, if the pods whose claims have been counted have theirs.
func (w *world) takes(p *corev1.Pod, counted map[string]bool) int64 {
	if counted[w.claimOf(p.Name)] {
		return wants(p) - w.shares(p)
	}
	return wants(p)
}

// mayBind reports whether the scheduler can bind a pod if enough devices are free: it has its claims, and the resource is offered in the way
// that the pod asks for.
func (w *world) mayBind(p *corev1.Pod, claims []resourceapi.ResourceClaim) bool {
	implicit := slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool { return !c.Resources.Limits.Name(implicitName, "").IsZero() })
	if len(p.Spec.ResourceClaims) == 0 {
		return w.offered || !implicit
	}
	name := p.Spec.ResourceClaims[0].ResourceClaimName
	return w.offered && (name == nil || slices.ContainsFunc(claims, func(c resourceapi.ResourceClaim) bool {
		return c.Name == *name && c.DeletionTimestamp == nil
	}))
}
