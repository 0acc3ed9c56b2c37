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

	mu     sync.Mutex
	named  map[string][]string // by pod: the devices that its claims name, ascending
	failed map[types.UID]bool
}

func newClaimView(w *world) *claimView {
	return &claimView{world: w, named: map[string][]string{}, failed: map[types.UID]bool{}}
}

// of returns the devices that the claims of a pod name, and whether the pod has claims that have been seen.
func (v *claimView) of(pod string) (ids []string, known bool) {
	if v == nil {
		return nil, false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	ids, known = v.named[pod]
	return ids, known
}

// look looks once. While the API server is away there is nothing to see.
func (v *claimView) look(ctx context.Context, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	api := v.world.Client()
	pods, err := api.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	claims, err := api.ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	byName := map[string]*resourceapi.ResourceClaim{}
	for i := range claims.Items {
		byName[claims.Items[i].Name] = &claims.Items[i]
	}
	for _, p := range pods.Items {
		if ids, known := chosen(&p, byName); known && p.Spec.NodeName != "" {
			v.mu.Lock()
			v.named[p.Name] = ids
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
}

// chosen returns the devices that a pod's claims name for its container, ascending, and whether it has claims that are allocated and
// reserved for it.
func chosen(p *corev1.Pod, claims map[string]*resourceapi.ResourceClaim) (ids []string, known bool) {
	add := func(name string, has func(resourceapi.DeviceRequestAllocationResult) bool) bool {
		c := claims[name]
		if c == nil || c.Status.Allocation == nil || !slices.ContainsFunc(c.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == p.UID }) {
			return false
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == driverName && has(r) {
				ids = append(ids, r.Device)
			}
		}
		return true
	}
	all := func(resourceapi.DeviceRequestAllocationResult) bool { return true }
	names := map[string]string{}
	for _, s := range p.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names[s.Name] = *s.ResourceClaimName
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names[c.Name] = *c.ResourceClaimName
		}
		if !add(names[c.Name], all) {
			return nil, false
		}
		known = true
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		mapped := func(r resourceapi.DeviceRequestAllocationResult) bool {
			return slices.ContainsFunc(s.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
				return m.ContainerName == p.Spec.Containers[0].Name && m.RequestName == r.Request
			})
		}
		if !add(s.ResourceClaimName, mapped) {
			return nil, false
		}
		known = true
	}
	slices.Sort(ids)
	return ids, known
}

// unlisted reports whether the claims of a pod name a device that the plugin lists no longer. The pod waits for it then (DeviceGone).
func (v *claimView) unlisted(pod string) bool {
	if v == nil {
		return false
	}
	listed := readMood().ids()
	ids, _ := v.of(pod)
	return slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(listed, id) })
}

// wants returns how many devices a pod asks for, in whatever way.
func wants(p *corev1.Pod) (n int64) {
	for _, e := range p.Spec.Containers[0].Env {
		if e.Name == wantsVariable {
			_, _ = fmt.Sscan(e.Value, &n)
		}
	}
	return n
}

// mayBind reports whether the scheduler can bind a pod if enough devices are free: it has its claims, and the resource is offered in the way
// that the pod asks for.
func (w *world) mayBind(p *corev1.Pod, claims []resourceapi.ResourceClaim) bool {
	if len(p.Spec.ResourceClaims) == 0 {
		return true
	}
	name := p.Spec.ResourceClaims[0].ResourceClaimName
	return w.offered && (name == nil || slices.ContainsFunc(claims, func(c resourceapi.ResourceClaim) bool {
		return c.Name == *name && c.DeletionTimestamp == nil
	}))
}

// fits reports whether enough devices are free for a pod, or the pod uses a claim that has devices.
func (w *world) fits(p *corev1.Pod, free int64, counted map[string]bool) bool {
	claim := w.claimOf(p.Name)
	return wants(p) <= free || claim != "" && counted[claim]
}
