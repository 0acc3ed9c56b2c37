package cpupolicy

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"
)

const (
	// sharesOfCPU is what the kubelet makes of a request for one CPU.
	sharesOfCPU = 1024
	// patience is how long the plugin waits for PodResources. NRI drops plugins that answer late, after 2 s by default.
	patience = time.Second
)

// A Plugin is a policy as an NRI plugin. It pins containers that request whole CPUs, and refuses one whose devices are not known.
type Plugin struct {
	*Policy
	client podresources.PodResourcesListerClient

	mu      sync.Mutex
	created []Creation
}

// A Creation is what the plugin has learnt and done when the runtime created a container.
type Creation struct {
	Pod, Container string
	Devices        []*podresources.ContainerDevices
	CPUs           cpuset.CPUSet
	Err            error // of a container that the plugin has refused
}

// NewPlugin returns a plugin that asks the client for devices.
func NewPlugin(m Machine, client podresources.PodResourcesListerClient) *Plugin {
	return &Plugin{Policy: New(m), client: client}
}

// Created returns all creations of containers that request whole CPUs, in their order.
func (p *Plugin) Created() []Creation {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.created)
}

// CreateContainer gives the container its CPUs.
func (p *Plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	shares := c.GetLinux().GetResources().GetCpu().GetShares().GetValue()
	if shares == 0 || shares%sharesOfCPU != 0 {
		return nil, nil, nil
	}
	made := Creation{Pod: pod.Name, Container: c.Name}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.created = append(p.created, made)
	}()
	made.Devices, made.Err = p.devices(ctx, pod, c.Name)
	if made.Err != nil {
		return nil, nil, made.Err
	}
	var mems string
	made.CPUs, mems, made.Err = p.Take(c.Id, Places(made.Devices), int(shares/sharesOfCPU))
	if made.Err != nil {
		return nil, nil, made.Err
	}
	adjustment := &api.ContainerAdjustment{}
	adjustment.SetLinuxCPUSetCPUs(made.CPUs.String())
	adjustment.SetLinuxCPUSetMems(mems)
	return adjustment, nil, nil
}

// devices asks PodResources for the devices of a container.
func (p *Plugin) devices(ctx context.Context, pod *api.PodSandbox, container string) ([]*podresources.ContainerDevices, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := p.client.Get(ctx, &podresources.GetPodResourcesRequest{PodNamespace: pod.Namespace, PodName: pod.Name})
	if err != nil {
		return nil, fmt.Errorf("asking for the devices of pod %s: %w", pod.Name, err)
	}
	for _, c := range answer.GetPodResources().GetContainers() {
		if c.Name == container {
			return c.Devices, nil
		}
	}
	return nil, fmt.Errorf("asking for the devices of pod %s: the answer lacks container %s", pod.Name, container)
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
