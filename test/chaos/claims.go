package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const (
	className  = "chaos.example-dev" // the DeviceClass of resourceName
	driverName = "devmgrd.io"
	claimName  = "devices" // of a pod's claim, in the pod
)

// A plan is how a sequence has the resource offered: as a number of the Node, or through Dynamic Resource Allocation (DRA). It is drawn
// from dice of its own, so the other faults of a seed are the same with either.
type plan struct {
	dice   *rand.Rand
	claims bool         // the resource is offered through DRA, at least for a part of the sequence
	begins bool         // it is at the beginning
	moves  map[int]bool // the resource is moved to DRA, or back, after these steps
	wiped  bool         // devmgrd is away at the end for so long that the kubelet deletes the slices
	hold   string       // dra.hold
}

// newPlan draws the plan of a seed. claims: the resource is offered through DRA all the time. The kubelet's device manager has no DRA: against it all sequences are played with the Node's number.
func newPlan(seed uint64, kubelet, claims bool) plan {
	dice := rand.New(rand.NewPCG(seed, 3))
	p := plan{dice: dice, claims: dice.IntN(2) == 0 && !kubelet, moves: map[int]bool{}}
	if claims {
		p.claims, p.begins, p.hold = true, true, []string{"2s", "30s"}[dice.IntN(2)]
		return p
	}
	if !p.claims {
		return p
	}
	p.begins = true
	first, second := 1+dice.IntN(4), 2+dice.IntN(5)
	switch dice.IntN(7) {
	case 0, 1: // to DRA
		p.begins, p.moves[first] = false, true
	case 2: // back
		p.moves[first] = true
	case 3: // there and back
		p.begins, p.moves[first], p.moves[first+second] = false, true, true
	}
	p.wiped = dice.IntN(12) == 0
	p.hold = []string{"2s", "30s"}[dice.IntN(2)]
	return p
}

// closed reports whether all pods have their devices by claims, so that no policy has to keep containers from starting while devmgrd is away.
func (p plan) closed() bool { return p.begins && len(p.moves) == 0 }

// setPolicy has pods require devmgrd, or not, in the next sequence.
func (w *world) setPolicy(ctx context.Context) error {
	if w.open == w.plan.closed() {
		return nil
	}
	set := w.node.FailClosed
	if w.plan.closed() {
		set = w.node.FailOpen
	}
	if err := set(ctx); err != nil {
		return err
	}
	w.open = w.plan.closed()
	return nil
}

// step returns the dice of the next step.
func (p plan) step() *rand.Rand { return rand.New(rand.NewPCG(p.dice.Uint64(), 0)) }

// String returns the plan for the sequence's story.
func (p plan) String() string {
	text := "the resource is offered as a number"
	if p.begins {
		text = "the resource is offered through DRA"
	}
	if p.claims {
		text += ", dra.hold is " + p.hold
	}
	if p.closed() {
		text += ", and there is no policy"
	}
	for _, step := range slices.Sorted(maps.Keys(p.moves)) {
		text += fmt.Sprintf("; it is moved after step %d", step)
	}
	return text
}

// A kind is how a pod asks for devices.
type kind int

const (
	requests kind = iota // the resource, as ever
	template             // a ResourceClaim that Kubernetes makes from a template
	own                  // a ResourceClaim that exists before the pod
	shared               // the ResourceClaim of an earlier pod
)

// how returns how a pod asks for devices, for the sequence's story.
func (w *world) how(pod string) string {
	s := w.asked[pod]
	return map[kind]string{template: " of a claim by template", own: " of a claim of its own", shared: " of the claim of " + w.claimOf(pod)}[s.claim] + s.String()
}

// claimOf returns the ResourceClaim of a pod's author that the pod uses; empty: none.
func (w *world) claimOf(pod string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.uses[pod]
}

// share reports whether two pods use one claim that has the device, and may have it together.
func (w *world) share(pod, other, device string) bool {
	claim := w.claimOf(pod)
	return claim != "" && claim == w.claimOf(other) && w.claims.has(claim, device)
}

// drawKind returns how the next pod asks for devices. Most pods request the resource while it is offered as a number, since pods with
// claims stay pending then.
func (w *world) drawKind(devices int) kind {
	if devices == 0 || !w.plan.claims || w.kinds == nil {
		return requests
	}
	n := w.kinds.IntN(8)
	switch {
	case n < 4, !w.offered && n < 6:
		return requests
	case n < 6 || !w.offered && n == 6:
		return template
	case len(w.claimed[devices]) > 0 && w.kinds.IntN(3) > 0:
		return shared
	}
	return own
}

// addClaims creates the DeviceClasses and templates for claims. The classes change nothing while the Node shows the resources.
func (w *world) addClaims(ctx context.Context) error {
	api := w.Client().ResourceV1()
	for _, name := range []string{resourceName, longName} {
		out, err := w.node.Command(ctx, "deviceclass", name).Output()
		if err != nil {
			return err
		}
		class := &resourceapi.DeviceClass{}
		if err := yaml.UnmarshalStrict(out, class); err != nil {
			return err
		}
		if _, err := api.DeviceClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for n := 1; n <= deviceCount; n++ {
		_, err := api.ResourceClaimTemplates(metav1.NamespaceDefault).Create(ctx, &resourceapi.ResourceClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Name: templateName(n)}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: claimOf(n)},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

func templateName(devices int) string { return fmt.Sprintf("devices-%d", devices) }

// claimOf returns a claim for so many devices.
func claimOf(devices int) resourceapi.ResourceClaimSpec {
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
		Name: "devices", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: className, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(devices),
		},
	}}}}
}

// asks adds a claim of so many devices to a pod.
func (w *world) asks(ctx context.Context, pod *corev1.Pod, devices int, how kind) error {
	if how == requests {
		return nil
	}
	claim := corev1.PodResourceClaim{Name: claimName}
	switch name := templateName(devices); how {
	case template:
		claim.ResourceClaimTemplateName = &name
	case shared:
		all := w.claimed[devices]
		dice := w.kinds
		if dice == nil {
			dice = w.ways
		}
		name = all[dice.IntN(len(all))]
		claim.ResourceClaimName = &name
	case own:
		claim.ResourceClaimName = &pod.Name
		w.claimed[devices] = append(w.claimed[devices], pod.Name)
		w.sizes[pod.Name] = devices
		_, err := w.Client().ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, &resourceapi.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Spec: claimOf(devices),
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	if claim.ResourceClaimName != nil {
		w.mu.Lock()
		w.uses[pod.Name] = *claim.ResourceClaimName
		w.mu.Unlock()
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
	return nil
}

// moved has devmgrd offer the resource in the other way from now on.
func (w *world) moved(dice *rand.Rand) (string, error) {
	hard, both := dice.IntN(2) == 0, dice.IntN(3) == 0
	w.offered = !w.offered
	what := "move the resource back to the Node's number"
	if w.offered {
		what = "move the resource to DRA"
	}
	err := w.write()
	if both {
		what += ", while the kubelet restarts"
		err = errors.Join(err, w.keeper.kill(w.Kubelet, true, false))
	}
	return what, errors.Join(err, w.keeper.kill(w.devmgrd, hard, false))
}

// removeClaims deletes the claims of pods' authors, and reports whether no claim is left.
func (w *world) removeClaims(ctx context.Context) (bool, string) {
	api := w.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	list, err := api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	var left []string
	for _, c := range list.Items {
		left = append(left, c.Name)
		if len(c.OwnerReferences) > 0 || c.DeletionTimestamp != nil {
			continue
		}
		if err := api.Delete(ctx, c.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return false, err.Error()
		}
	}
	return len(left) == 0, fmt.Sprintf("claims %s are still there", strings.Join(left, ", "))
}

// sliced returns the devices of the resource in the ResourceSlices, with the keys of their taints.
func (w *world) sliced(ctx context.Context) (map[string][]string, error) {
	list, err := w.Client().ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + driverName})
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			if d.Name == longDevice || strings.HasPrefix(d.Name, "flap-") {
				continue
			}
			all[d.Name] = []string{}
			for _, t := range d.Taints {
				all[d.Name] = append(all[d.Name], t.Key)
			}
		}
	}
	return all, nil
}

// whole reports whether the scheduler is offered all devices, and in one way.
func (w *world) whole(ctx context.Context) (bool, string) {
	if w.node == nil {
		return w.shows(ctx, deviceCount)
	}
	devices, err := w.sliced(ctx)
	if err != nil {
		return false, err.Error()
	}
	if !w.offered {
		if len(devices) > 0 {
			return false, fmt.Sprintf("the slices show %v", devices)
		}
		return w.shows(ctx, deviceCount)
	}
	n, there, err := (&apiView{cluster: w.Cluster}).shown(ctx)
	switch {
	case err != nil:
		return false, err.Error()
	case there:
		return false, fmt.Sprintf("the Node shows %d", n)
	}
	for _, id := range readMood().ids() {
		if taints, offered := devices[id]; !offered || len(taints) > 0 {
			return false, fmt.Sprintf("the slices show %v", devices)
		}
	}
	return len(devices) == deviceCount, fmt.Sprintf("the slices show %v", devices)
}

// lacks is what has gone wrong when not all devices are offered.
func (w *world) lacks() string {
	if w.offered {
		return unsliced
	}
	return number
}
