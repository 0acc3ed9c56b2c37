package nri

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Local pods are those of which the runtime tells, and not the API server: static pods, and all pods where there is no
// Kubernetes. What their containers ask for stands in an annotation of the pod:
//
//	devmgrd.io/resources: '{"main":{"vendor.example/gpu":2}}'
//
// Static pods without it are known by their mirror pods, once the kubelet has made them.

const (
	maxAnnotation = 64 << 10 // what is read of a pod's annotation
	maxUID        = 128      // the longest UID of a local pod; Kubernetes' own have 36 bytes
)

// local reports whether the pod's demand comes from the runtime.
func (p *plugin) local(pod *api.PodSandbox) bool {
	return pod.GetAnnotations()[resourcesKey] != "" && (p.Pods == nil || !fromAPI(pod))
}

// fromAPI reports whether the kubelet got the pod from the API server.
func fromAPI(pod *api.PodSandbox) bool { return pod.GetAnnotations()[sourceKey] == sourceAPI }

// demandOf returns a local pod's demand. The annotation does not mark init containers, so all containers count as running at the
// same time.
func demandOf(pod *api.PodSandbox) (device.PodDemand, error) {
	d := device.PodDemand{Pod: identity(pod), Local: true}
	if n := len(d.Pod.UID); n == 0 || n > maxUID {
		return d, fmt.Errorf("the sandbox's UID has %d bytes; a pod with devices needs a UID of 1 to %d bytes", n, maxUID)
	}
	wants, err := resources(pod.GetAnnotations()[resourcesKey])
	if err != nil {
		return d, fmt.Errorf(`annotation %s: %w; write it like {"container":{"vendor.example/gpu":2}}`, resourcesKey, err)
	}
	for _, name := range slices.Sorted(maps.Keys(wants)) {
		c := device.Container{Pod: d.Pod.UID, Name: name}
		d.Demands = append(d.Demands, device.Demand{Container: c, Kind: device.App, Wants: wants[name]})
	}
	return d, nil
}

// resources reads the annotation: the requests of each container. It omits containers without requests.
func resources(text string) (map[string]map[device.ResourceName]int, error) {
	if len(text) > maxAnnotation {
		return nil, fmt.Errorf("it is longer than %d bytes", maxAnnotation)
	}
	var requests map[string]map[string]int
	if err := json.Unmarshal([]byte(text), &requests); err != nil {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	all := map[string]map[device.ResourceName]int{}
	for container, wants := range requests {
		for name, n := range wants {
			r, err := device.ParseResourceName(name)
			switch {
			case err != nil:
				return nil, fmt.Errorf("container %.80q: %w", container, err)
			case n < 0:
				return nil, fmt.Errorf("container %.80q: requests %d of %s", container, n, r)
			case n == 0:
				continue
			case all[container] == nil:
				all[container] = map[device.ResourceName]int{}
			}
			all[container][r] = min(n, math.MaxInt32) // more cannot be had either, and sums stay in range
		}
	}
	return all, nil
}

// bind binds the local pod of a sandbox in the allocator. It is idempotent.
func (p *plugin) bind(pod *api.PodSandbox) error {
	d, err := demandOf(pod)
	if err != nil {
		return err
	}
	p.sandboxes.add(pod)
	p.Allocator.Bind(d)
	return nil
}

// RunPodSandbox binds a local pod, so that its devices can be allocated while its images are pulled. Sandbox events are never
// refused: that would leak records in containerd, and help no container.
func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	defer p.hook("RunPodSandbox")()
	defer p.survive("RunPodSandbox", new(error))
	p.Presence.sandboxes.add(pod)
	if !p.local(pod) {
		return nil
	}
	if err := p.bind(pod); err != nil {
		p.Log.Warn("cannot serve static pod", "pod", identity(pod).String(), "err", err)
	}
	return nil
}

// StopPodSandbox reports that a sandbox is being stopped. The pod may have another sandbox.
func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.leave("StopPodSandbox", pod)
}

// RemovePodSandbox reports that a pod's sandbox and all its containers are gone. For some containers the runtime sends no other
// event: an NRI plugin that fails hides their own events from the plugins after it. StopPodSandbox comes earlier and proves less,
// since containers may still be created then.
func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.leave("RemovePodSandbox", pod)
}

func (p *plugin) leave(event string, pod *api.PodSandbox) error {
	defer p.hook(event)()
	defer p.survive(event, new(error))
	if event == "RemovePodSandbox" {
		p.notRedirected.removeSandbox(pod.GetId())
		p.Runtime.RuntimeRemoved(device.PodUID(pod.GetUid()), pod.GetId())
		p.attempts.forgetPod(device.PodUID(pod.GetUid()))
	}
	if p.sandboxes.remove(pod) {
		p.Allocator.DropLocal(device.PodUID(pod.GetUid()))
	}
	if event == "RemovePodSandbox" && p.Presence.sandboxes.remove(pod) {
		p.Dirs.PodGone(device.PodUID(pod.GetUid()))
	}
	return nil
}

// sandboxes are sandboxes by their pods' UIDs.
type sandboxes struct {
	changed chan struct{} // size one: of static pods, or all; nil: no one waits for it

	mu    locks.Mutex[locks.Leaf]
	ids   map[string]map[string]string // by the sandbox's ID the file of its network namespace; empty: it has the host's, or the file is not known
	named map[string]namedPod          // those of them whose sandboxes the runtime has shown
}

// A namedPod is what a pod's sandbox says of it.
type namedPod struct {
	device.Pod
	static bool // the kubelet has it from another source than the API server
	local  bool // it has the annotation with the requests
}

func (s *sandboxes) add(pod *api.PodSandbox) {
	network := ""
	for _, n := range pod.GetLinux().GetNamespaces() {
		if n.GetType() == "network" {
			network = n.GetPath()
		}
	}
	s.addID(pod.GetUid(), pod.GetId(), network)
	static := !fromAPI(pod)
	s.mu.Lock()
	lists.Put(&s.named, pod.GetUid(), namedPod{identity(pod), static, pod.GetAnnotations()[resourcesKey] != ""})
	s.mu.Unlock()
	if static {
		loops.Signal(s.changed)
	}
}

// static reports what Presence.Static does. A sandbox of which only the UID is known may be any pod's.
func (s *sandboxes) static(pod device.Pod) (shown, local bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of, known := s.named[string(pod.UID)]
	shown = known && of.static && of.Pod == pod || !known && len(s.ids[string(pod.UID)]) > 0
	return shown, of.local
}

func (s *sandboxes) addID(uid, id, network string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids == nil {
		s.ids = map[string]map[string]string{}
	}
	lists.Inner(s.ids, uid)[id] = cmp.Or(network, s.ids[uid][id])
}

// networks returns the files of the network namespaces of a pod's sandboxes.
func (s *sandboxes) networks(uid device.PodUID) (paths []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range s.ids[string(uid)] {
		if path != "" {
			paths = append(paths, path)
		}
	}
	return paths
}

func (s *sandboxes) has(uid device.PodUID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids[string(uid)]) > 0
}

// replace takes over the sandboxes of another value, which must not be used afterwards.
func (s *sandboxes) replace(by *sandboxes) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids, s.named = by.ids, by.named
	loops.Signal(s.changed)
}

// remove removes a sandbox and reports whether it was the pod's last one.
func (s *sandboxes) remove(pod *api.PodSandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids[pod.GetUid()]
	if _, known := ids[pod.GetId()]; !known {
		return false
	}
	delete(ids, pod.GetId())
	if len(ids) > 0 {
		return false
	}
	delete(s.ids, pod.GetUid())
	delete(s.named, pod.GetUid())
	return true
}
