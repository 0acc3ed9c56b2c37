package nri

import (
	"cmp"
	"maps"
	"slices"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// notRedirected are running containers with the kubelet's plugin directory: they were created without devmgrd, so a device plugin
// in one of them is registered with the kubelet. The next Synchronize replaces them.
type notRedirected struct {
	mu         locks.Mutex[locks.Leaf]
	containers map[string]notRedirectedContainer // by the container's ID
}

type notRedirectedContainer struct {
	device.PodContainer
	sandbox string
}

// replace sets the containers to those that the runtime has listed.
func (s *notRedirected) replace(all map[string]notRedirectedContainer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containers = all
}

// remove removes a container that has ended.
func (s *notRedirected) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.containers, id)
}

// removeSandbox removes all containers of a sandbox.
func (s *notRedirected) removeSandbox(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.containers, func(_ string, c notRedirectedContainer) bool { return c.sandbox == id })
}

func (s *notRedirected) has(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, has := s.containers[id]
	return has
}

// list returns the containers in the order of their pods' names.
func (s *notRedirected) list() []device.PodContainer {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]device.PodContainer, 0, len(s.containers))
	for _, c := range s.containers {
		all = append(all, c.PodContainer)
	}
	slices.SortFunc(all, func(a, b device.PodContainer) int {
		return cmp.Or(cmp.Compare(a.Pod.String(), b.Pod.String()), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return all
}

func (s *notRedirected) count() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(len(s.containers))
}

// hasKubeletDir reports whether a container has a mount that devmgrd would have redirected.
func (p *plugin) hasKubeletDir(pod *api.PodSandbox, ctr *api.Container) bool {
	if p.Redirect == nil || pod.GetAnnotations()[redirectKey] == "false" {
		return false
	}
	i := slices.IndexFunc(ctr.GetMounts(), p.Redirect.names)
	if i < 0 {
		return false
	}
	p.Log.Warn("container not redirected; restart its pod",
		"pod", identity(pod).String(), "container", nameOf(ctr), "at", ctr.GetMounts()[i].GetDestination())
	return true
}
