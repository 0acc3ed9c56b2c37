package cpupolicy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// sharesOfCPU is what the kubelet makes of a request for one CPU.
	sharesOfCPU = 1024
	// patience is how long the plugin waits for PodResources. NRI drops plugins that answer late: after 10 s with devmgrd's settings, else after 2 s.
	patience = 5 * time.Second
)

// A Plugin is a policy as an NRI plugin. It pins containers that request whole CPUs, and refuses one whose devices are not known.
type Plugin struct {
	*Policy
	client podresources.PodResourcesListerClient

	mu      sync.Mutex
	answers []Answer
}

// An Answer is what PodResources has said of a container that the runtime was about to create or, without a Container, of a pod whose sandbox it
// had made.
type Answer struct {
	Pod, Container string
	Devices        []*podresources.ContainerDevices
	Err            error // of a pod whose devices are not known
}

// NewPlugin returns a plugin that asks the client for devices.
func NewPlugin(m Machine, client podresources.PodResourcesListerClient) *Plugin {
	return &Plugin{Policy: New(m), client: client}
}

// Answers returns all answers, in their order.
func (p *Plugin) Answers() []Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.answers)
}

// RunPodSandbox asks for the pod's devices, as the topology-aware policy does, which asks at no other time. The answer is only noted.
func (p *Plugin) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	p.ask(ctx, pod, "")
	return nil
}

// CreateContainer pins the container.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	shares := c.GetLinux().GetResources().GetCpu().GetShares().GetValue()
	if shares == 0 || shares%sharesOfCPU != 0 {
		return nil, nil, nil
	}
	answer := p.ask(ctx, pod, c.Name)
	if answer.Err != nil {
		return nil, nil, answer.Err
	}
	cpus, mems, err := p.Take(c.Id, Places(answer.Devices), int(shares/sharesOfCPU))
	if err != nil {
		return nil, nil, err
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.SetLinuxCPUSetCPUs(cpus.String())
	adjustment.SetLinuxCPUSetMems(mems)
	return adjustment, nil, nil
}

// ask asks PodResources for the devices of a container, or of all of a pod's: "".
func (p *Plugin) ask(ctx context.Context, pod *api.PodSandbox, container string) Answer {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer := Answer{Pod: pod.Name, Container: container}
	said, err := p.client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: pod.Namespace, PodName: pod.Name})
	if err != nil {
		answer.Err = fmt.Errorf("asking for the devices of pod %s: %w", pod.Name, err)
	}
	for _, c := range said.GetPodResources().GetContainers() {
		if container == "" || c.Name == container {
			answer.Devices = append(answer.Devices, c.Devices...)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers = append(p.answers, answer)
	return answer
}

// Places returns the NUMA nodes that are near each device.
func Places(devices []*podresources.ContainerDevices) (all [][]int64) {
	for _, d := range devices {
		for range d.DeviceIds {
			var near []int64
			for _, n := range d.GetTopology().GetNodes() {
				near = append(near, n.ID)
			}
			all = append(all, near)
		}
	}
	return all
}

// StopContainer takes the CPUs of a container back that has ended, or that another plugin has refused.
func (p *Plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	p.Return(c.Id)
	return nil, nil
}

// RemoveContainer does as StopContainer.
func (p *Plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.Return(c.Id)
	return nil
}
