package pods

import (
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// A podState is the relevant state of a pod in the API.
type podState struct {
	demand  device.PodDemand
	version uint64 // the resourceVersion; 0: not comparable
	node    string
	account string // its service account's name
	// confined: it has nothing of the host's.
	confined bool
	mirror   bool            // it looks like a mirror pod, of which the kubelet runs no container
	ended    bool            // the phase is terminal: no container runs again
	shown    device.ShownPod // its conditions, if it requests devices
}

// A reader turns API objects into podStates.
type reader struct {
	ignored   ignored
	selectors bool // pods may choose devices
	claims    bool // devmgrd serves claims
}

// trim returns what is kept of a pod: it may have 1.4 MB, and a list of pods has no limit.
func (r reader) trim(obj any) any {
	if s, ok := r.pod(obj); ok {
		return s
	}
	return obj
}

// pod reads a pod from the watch, or from a list that has been trimmed.
func (r reader) pod(obj any) (podState, bool) {
	if s, ok := obj.(podState); ok {
		return s, true
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return podState{}, false
	}
	s := podState{
		version:  kube.ParseVersion(p.ResourceVersion),
		node:     p.Spec.NodeName,
		account:  p.Spec.ServiceAccountName,
		confined: confined(p),
		mirror:   mirrored(p),
		ended:    ended(p),
		demand: device.PodDemand{
			Pod:     device.Pod{UID: uid(p), Namespace: p.Namespace, Name: p.Name},
			Created: p.CreationTimestamp.Time, Admitted: admitted(p), Movable: movable(p), UserNamespace: p.Spec.HostUsers != nil && !*p.Spec.HostUsers,
			Mirror: mirrored(p) && p.Annotations[resourcesKey] != "", Group: group(p), Leaving: leaving(p),
		},
	}
	if !s.ended || s.mirror { // its static pod may run again
		room := &room{maxPodSize}
		s.demand.Demands = r.demands(p, room)
		if p.Status.ExtendedResourceClaimStatus != nil && !slices.ContainsFunc(s.demand.Demands, func(d device.Demand) bool { return len(d.Wants) > 0 }) {
			s.demand.Admitted = true // the scheduler has made a claim for all that it requests: the kubelet does not check that
		}
		s.demand.Containers, s.demand.Sidecars = containers(p)
		s.demand = bounded(s.demand, room)
		if !s.ended && (len(s.demand.Demands) > 0 || s.demand.Mirror) { // a condition would bring an event, which drops the pod
			s.shown = shown(p)
		}
	}
	return s, true
}

// shown returns what a pod shows of devmgrd's conditions. Another writer's texts are cut where devmgrd's would end.
func shown(p *corev1.Pod) device.ShownPod {
	s := device.ShownPod{
		Pod:    device.Pod{UID: uid(p), Namespace: p.Namespace, Name: p.Name},
		Object: string(p.UID), Version: kube.ParseVersion(p.ResourceVersion), Leaving: p.DeletionTimestamp != nil,
	}
	for _, c := range p.Status.Conditions {
		if (c.Type == device.DevicesAssigned || c.Type == device.DevicesHealthy) && s.Condition(string(c.Type)) == (device.PodCondition{}) {
			s.Conditions = append(s.Conditions, device.PodCondition{
				Type: string(c.Type), Status: device.ClipTo(string(c.Status), 16), Reason: device.ClipTo(c.Reason, 128),
				Message: strings.Clone(c.Message[:min(len(c.Message), device.MaxPodCondition+1)]), Since: c.LastTransitionTime.Time,
			})
		}
	}
	return s
}

// movable reports whether the pod's controller creates another one in its place, which the scheduler may bind to another node. A
// DaemonSet's pod comes back on the same node, and a static pod never leaves it.
func movable(p *corev1.Pod) bool {
	owner := metav1.GetControllerOf(p)
	return owner != nil && owner.Kind != "DaemonSet" && owner.Kind != "Node"
}

// group returns the name of the pod's PodGroup; empty: it has none.
func group(p *corev1.Pod) string {
	if g := p.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return *g.PodGroupName
	}
	return ""
}

// ended reports whether the pod's phase is terminal.
func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// leaving reports whether the kubelet starts no further container of the pod: it is being deleted (ShouldContainerBeRestarted); or it is
// never restarted, its sandbox is gone, and a container of it had been started (computePodActions). Its phase stays what it is until its
// volumes are unmounted, or for ever, if a container of it has not been started. The deletion of a mirror pod says nothing of the static pod.
func leaving(p *corev1.Pod) bool {
	switch {
	case mirrored(p):
		return false
	case p.DeletionTimestamp != nil:
		return true
	}
	unready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionFalse
	})
	started := func(c corev1.ContainerStatus) bool { return c.State.Running != nil || c.State.Terminated != nil }
	return unready && p.Spec.RestartPolicy == corev1.RestartPolicyNever &&
		slices.ContainsFunc(slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses), started)
}

// ending reads how a pod ended. A kubelet that rejects a pod writes a reason and no container statuses. Any other end on the
// node keeps the statuses, and an end from elsewhere has no reason.
func ending(p *corev1.Pod) device.EndedPod {
	status := &p.Status
	e := device.EndedPod{
		Pod:    device.Pod{UID: uid(p), Namespace: p.Namespace, Name: p.Name},
		Failed: status.Phase == corev1.PodFailed, Reason: status.Reason, Message: status.Message,
	}
	if !ended(p) {
		e.Leaving, e.Message = true, "it is being deleted"
		if p.DeletionTimestamp == nil {
			e.Message = "its sandbox is gone and its restartPolicy is Never; delete the pod"
		}
		return e
	}
	e.Refused = e.Failed && e.Reason != "" && len(status.InitContainerStatuses)+len(status.ContainerStatuses) == 0
	if e.Refused && status.StartTime != nil {
		e.At = status.StartTime.Time
	}
	if i := slices.IndexFunc(status.Conditions, disrupted); e.Reason == "" && i >= 0 {
		e.Reason, e.Message = status.Conditions[i].Reason, status.Conditions[i].Message
	}
	return e
}

// disrupted reports whether a condition says that Kubernetes has evicted the pod: for a taint of the Node or of a device, a preemption, or by request.
func disrupted(c corev1.PodCondition) bool {
	return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue
}

// admitted reports whether the kubelet has accepted a pod. A start time alone does not prove that: a kubelet that has just
// started writes it for a pod that it rejects, and the pod's phase up to 10 s later (mergePodStatus). The container statuses
// come with the first status of an accepted pod.
func admitted(p *corev1.Pod) bool {
	return p.Status.StartTime != nil && len(p.Status.InitContainerStatuses)+len(p.Status.ContainerStatuses) > 0
}

// resourcesKey is the annotation in which a static pod may list its requests. Its mirror pod has it too, but the runtime
// reports the static pod earlier, and without an API server. The mirror pod's own requests are for the scheduler.
const resourcesKey = "devmgrd.io/resources"

// mirrored reports whether the kubelet takes the pod for the mirror of a static pod, of which it never runs a container.
func mirrored(p *corev1.Pod) bool {
	_, is := p.Annotations[corev1.MirrorPodAnnotationKey]
	return is
}

// generated matches the UID that a kubelet derives from a static pod's manifest: a hash of 128 bits. No UID of the API server
// matches.
var generated = regexp.MustCompile("^[0-9a-f]{32}$")

// uid returns the UID by which the runtime knows the pod. A static pod's UID is a hash of its manifest, which the kubelet
// writes on the mirror pod. Any user who may create pods can write there too, so uid accepts nothing else, and the store believes it if the runtime
// shows that static pod. The API server lets no one change the annotation.
func uid(p *corev1.Pod) device.PodUID {
	if hash := p.Annotations[corev1.MirrorPodAnnotationKey]; generated.MatchString(hash) {
		return device.PodUID(hash)
	}
	return device.PodUID(p.UID)
}

// deleted returns the pod of a delete event. A tombstone stands for a delete that the watch missed: it holds the last known
// state of the pod or, at worst, only namespace/name, and then the returned pod has no UID.
func (r reader) deleted(obj any) (pod device.Pod, version uint64, ok bool) {
	if tomb, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = tomb.Obj
		if obj == nil {
			namespace, name, found := strings.Cut(tomb.Key, "/")
			return device.Pod{Namespace: namespace, Name: name}, 0, found
		}
	}
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return device.Pod{}, 0, false
	}
	return device.Pod{UID: uid(p), Namespace: p.Namespace, Name: p.Name}, kube.ParseVersion(p.ResourceVersion), true
}

// containers returns the names of the containers that run until the pod ends, sidecars first.
func containers(p *corev1.Pod) (names []string, sidecars int) {
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; kindOf(c) == device.Sidecar {
			names = append(names, c.Name)
		}
	}
	sidecars = len(names)
	for i := range p.Spec.Containers {
		names = append(names, p.Spec.Containers[i].Name)
	}
	return names, sidecars
}

// kindOf distinguishes sidecars from init containers that end.
func kindOf(c *corev1.Container) device.Kind {
	if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
		return device.Sidecar
	}
	return device.Init
}

// demands returns the containers' requests, in the order in which the containers start. As in the kubelet's device manager,
// ephemeral containers and pod overhead never have devices, and a container's limits count; its requests equal them for
// extended resources. A static pod has no claims, so those of its mirror pod do not count.
func (r reader) demands(p *corev1.Pod, room *room) []device.Demand {
	var all []device.Demand
	named := map[string]string{} // the claims, by the pod's names for them
	if r.claims && !mirrored(p) {
		named = claimNames(p)
	}
	add := func(c *corev1.Container, kind device.Kind) {
		wants := r.wants(p, c)
		var claims []device.ClaimUse
		if r.claims && !mirrored(p) {
			claims = claimsOf(p, c, named)
		}
		if wants == nil && claims == nil {
			return
		}
		env := variables(c, room)
		d := device.Demand{
			Container: device.Container{Pod: uid(p), Name: c.Name},
			Kind:      kind, Wants: wants, Env: env, Refs: references(c, env, room), Claims: claims,
		}
		if len(claims) > 0 {
			d.Volumes = volumes(c, room)
		}
		all = append(all, d)
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		add(c, kindOf(c))
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i], device.App)
	}
	if r.selectors {
		limit(p, all)
	}
	return all
}

// volumes returns the paths of the pod's volumes in a container, ascending.
func volumes(c *corev1.Container, room *room) (all []string) {
	for _, m := range c.VolumeMounts {
		all = room.add(all, path.Clean(m.MountPath))
	}
	for _, d := range c.VolumeDevices {
		all = room.add(all, path.Clean(d.DevicePath))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// wants returns the extended resources of one container, or nil if it requests none.
func (r reader) wants(p *corev1.Pod, c *corev1.Container) map[device.ResourceName]int {
	var wants map[device.ResourceName]int
	for name, quantity := range c.Resources.Limits {
		if !strings.Contains(string(name), "/") {
			continue // cpu, memory and the like, of which every container has some
		}
		resource, err := device.ParseResourceName(string(name))
		if err != nil || r.ignored.has(resource) || claimed(p, c.Name, string(name)) {
			continue
		}
		if quantity.Sign() <= 0 {
			continue
		}
		n := math.MaxInt32 // a larger request cannot be met either, and sums stay in range
		if quantity.CmpInt64(math.MaxInt32) < 0 {
			n = int(quantity.Value())
		}
		lists.Put(&wants, resource, n)
	}
	return wants
}

// claimed reports whether dynamic resource allocation serves this resource to the container. The scheduler writes that into
// the pod's status before it binds the pod.
func claimed(p *corev1.Pod, container, resource string) bool {
	status := p.Status.ExtendedResourceClaimStatus
	return status != nil && slices.ContainsFunc(status.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool {
		return m.ContainerName == container && m.ResourceName == resource
	})
}

// claimsOf returns a container's claims: those that its specification names, and the one that the scheduler has made for its extended
// resources. A claim that is made from a template has its name in the pod's status. An extended resource may be the implicit one of a
// DeviceClass (deviceclass.resource.kubernetes.io/CLASS), which is no plugin's: then the claim alone says which devices they are.
func claimsOf(p *corev1.Pod, c *corev1.Container, named map[string]string) (all []device.ClaimUse) {
	for _, use := range c.Resources.Claims {
		if name, made := named[use.Name]; name != "" || !made {
			all = append(all, device.ClaimUse{Claim: name, Request: use.Request})
		}
	}
	if status := p.Status.ExtendedResourceClaimStatus; status != nil {
		for _, m := range status.RequestMappings {
			if m.ContainerName == c.Name {
				resource, _ := device.ParseResourceName(m.ResourceName)
				all = append(all, device.ClaimUse{Claim: status.ResourceClaimName, Request: m.RequestName, Resource: resource})
			}
		}
	}
	return all
}

// claimNames returns the names of a pod's claims by what the pod calls them. A claim that is still to be made from a template has no entry; a pod whose
// template asks for no claim has one without a name.
func claimNames(p *corev1.Pod) map[string]string {
	all := make(map[string]string, len(p.Spec.ResourceClaims))
	for _, one := range p.Status.ResourceClaimStatuses {
		all[one.Name] = ""
		if one.ResourceClaimName != nil {
			all[one.Name] = *one.ResourceClaimName
		}
	}
	for _, one := range p.Spec.ResourceClaims {
		if one.ResourceClaimName != nil {
			all[one.Name] = *one.ResourceClaimName
		}
	}
	return all
}

// variables returns the names that the specification sets in the container, ascending. Names from envFrom are not known here:
// they are in other objects.
func variables(c *corev1.Container, room *room) (names []string) {
	for i := range c.Env {
		names = room.add(names, c.Env[i].Name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// references returns the variables that command and args refer to as $(NAME) and that the specification does not define,
// ascending; defined are those that it does. The kubelet leaves undefined references unchanged. It turns $$(NAME) into the
// same text, so a name that is escaped anywhere is left out.
func references(c *corev1.Container, defined []string, room *room) (names []string) {
	plain := map[string]bool{} // whether the name is escaped nowhere
	for _, text := range slices.Concat(c.Command, c.Args) {
		for room.left > 0 {
			before, rest, more := strings.Cut(text, "$(")
			if !more {
				break
			}
			name, after, closed := strings.Cut(rest, ")")
			if !closed {
				break
			}
			dollars := len(before) - len(strings.TrimRight(before, "$"))
			was, known := plain[name]
			switch is := dollars%2 == 0; {
			case known && was != is:
				plain[name] = false
			case !known:
				if _, own := slices.BinarySearch(defined, name); !own && name != "" {
					plain[strings.Clone(name)] = is
					room.take(name)
				}
			}
			text = after
		}
	}
	for name, is := range plain {
		if is {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// ignored are the extended resources that no device plugin serves: names, or "domain/*".
type ignored map[string]bool

func ignoring(patterns []string) ignored {
	set := ignored{}
	for _, p := range patterns {
		set[p] = true
	}
	return set
}

func (set ignored) has(r device.ResourceName) bool {
	domain, _, _ := strings.Cut(string(r), "/")
	return set[string(r)] || set[domain+"/*"]
}
