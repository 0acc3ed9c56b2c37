//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// A saying is what was answered to one question, a fact a line.
type saying map[string]view

// ask asks everything that can be asked of both.
func (s *stage) ask() saying {
	said := saying{}
	put := func(question string, lines view, err error) {
		if err != nil {
			e := status.Convert(err)
			lines = view{fmt.Sprintf("error %s: %s", e.Code(), e.Message())}
		}
		slices.Sort(lines)
		said[question] = lines
	}
	list, err := patiently(func() (*podresources.ListPodResourcesResponse, error) {
		return s.tell.List(s.ctx, &podresources.ListPodResourcesRequest{})
	})
	var lines view
	for _, p := range list.GetPodResources() {
		lines = append(lines, podLines(p)...)
	}
	put("v1 List", lines, err)

	allocatable, err := patiently(func() (*podresources.AllocatableResourcesResponse, error) {
		return s.tell.GetAllocatableResources(s.ctx, &podresources.AllocatableResourcesRequest{})
	})
	for _, m := range allocatable.GetMemory() {
		m.Size = s.memory(m.MemoryType) - m.Size // what is reserved: a virtual machine may be given more between two kubelets
	}
	put("v1 GetAllocatableResources", resourceLines("", allocatable.GetDevices(), allocatable.GetCpuIds(), allocatable.GetMemory()), err)

	old, err := patiently(func() (*v1alpha1.ListPodResourcesResponse, error) {
		return s.tell.old.List(s.ctx, &v1alpha1.ListPodResourcesRequest{})
	})
	put("v1alpha1 List", oldLines(old.GetPodResources()), err)

	if !cluster.Has(cluster.PodGet) {
		return said
	}
	unknown := []*corev1.Pod{node.Pod("unknown", "", 0), node.Pod("static", "", 0), node.Pod("", "", 0), node.Pod("elsewhere", "", 0)}
	mirror := node.Pod(s.static, "", 0)
	for _, p := range slices.Concat(cast(), unknown, []*corev1.Pod{mirror}) {
		one, err := patiently(func() (*podresources.GetPodResourcesResponse, error) {
			return s.tell.Get(s.ctx, &podresources.GetPodResourcesRequest{PodNamespace: p.Namespace, PodName: p.Name})
		})
		put(fmt.Sprintf("v1 Get %s/%s", p.Namespace, p.Name), podLines(one.GetPodResources()), err)
	}
	return said
}

// memory returns the bytes of a type of memory that the kubelet's memory manager has found in the machine's only NUMA node.
func (s *stage) memory(kind string) uint64 {
	s.t.Helper()
	text, err := os.ReadFile("/var/lib/kubelet/memory_manager_state")
	s.must(err)
	var state struct {
		MachineState map[string]struct {
			MemoryMap map[string]struct{ Total uint64 }
		}
	}
	s.must(json.Unmarshal(text, &state))
	found, ok := state.MachineState["0"].MemoryMap[kind]
	if !ok {
		s.t.Fatalf("the kubelet's memory manager knows no %s: %s", kind, text)
	}
	return found.Total
}

// patiently asks until it is not told that too much was asked.
func patiently[A any](ask func() (A, error)) (A, error) {
	for {
		answer, err := ask()
		if status.Code(err) != codes.ResourceExhausted {
			return answer, err
		}
		time.Sleep(20 * time.Millisecond) // the limiter has nothing to wait for but time
	}
}

func podLines(p *podresources.PodResources) view {
	if p == nil {
		return nil
	}
	name := p.Namespace + "/" + p.Name
	all := view{fmt.Sprintf("pod %s has %d containers", name, len(p.Containers))}
	for i, c := range p.Containers {
		at := fmt.Sprintf("%s %d:%s ", name, i, c.Name)
		all = append(all, resourceLines(at, c.Devices, c.CpuIds, c.Memory)...)
		for _, d := range c.DynamicResources {
			all = append(all, at+"claim "+d.String())
		}
		all = append(all, at+"is there")
	}
	return all
}

// resourceLines has a line for each entry, as the entries are divided.
func resourceLines(at string, devices []*podresources.ContainerDevices, cpus []int64, memory []*podresources.ContainerMemory) view {
	var all view
	for _, d := range devices {
		all = append(all, fmt.Sprintf("%sdevices %s %q near %s", at, d.ResourceName, d.DeviceIds, nearLine(d.Topology)))
	}
	slices.Sort(cpus)
	if len(cpus) > 0 {
		all = append(all, fmt.Sprintf("%scpus %v", at, cpus))
	}
	for _, m := range memory {
		all = append(all, fmt.Sprintf("%smemory %s %d near %s", at, m.MemoryType, m.Size, nearLine(m.Topology)))
	}
	return all
}

// nearLine tells "nothing is said" from "near no node".
func nearLine(t *podresources.TopologyInfo) string {
	if t == nil {
		return "nothing"
	}
	nodes := []int64{}
	for _, n := range t.Nodes {
		nodes = append(nodes, n.ID)
	}
	return fmt.Sprint(nodes)
}

func oldLines(pods []*v1alpha1.PodResources) view {
	var all view
	for _, p := range pods {
		name := p.Namespace + "/" + p.Name
		all = append(all, fmt.Sprintf("pod %s has %d containers", name, len(p.Containers)))
		for i, c := range p.Containers {
			at := fmt.Sprintf("%s %d:%s ", name, i, c.Name)
			all = append(all, at+"is there")
			for _, d := range c.Devices {
				all = append(all, fmt.Sprintf("%sdevices %s %q", at, d.ResourceName, d.DeviceIds))
			}
		}
	}
	return all
}

// file returns what the kubelet's file in the plugins' directory says, with pods' names for their UIDs.
func (s *stage) file() (view, error) {
	data, err := os.ReadFile(filepath.Join(s.sockets, checkpoint.Name))
	if err != nil {
		return nil, err
	}
	file, err := checkpoint.Decode(data)
	if err != nil {
		return nil, err
	}
	pods, err := s.Client().CoreV1().Pods("").List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	names := map[device.PodUID]string{}
	for _, p := range pods.Items {
		uid := string(p.UID)
		if of, mirror := p.Annotations["kubernetes.io/config.mirror"]; mirror {
			uid = of
		}
		names[device.PodUID(uid)] = p.Name
	}
	var all view
	for _, e := range file.Entries {
		if names[e.Container.Pod] == "brief" {
			continue // a kubelet writes its file when it assigns devices, and not when it releases them
		}
		grant, err := e.Grant()
		if err != nil {
			return nil, err
		}
		all = append(all, fmt.Sprintf("entry %s %s %s %v %v", names[e.Container.Pod], e.Container.Name, e.Resource, e.Devices, grant))
	}
	for name, ids := range file.Healthy {
		all = append(all, fmt.Sprintf("registered %s %v", name, ids))
	}
	slices.Sort(all)
	return all, nil
}

func (o *onlooker) ask(ctx context.Context, client podresources.PodResourcesListerClient) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	began := time.Now()
	answer, err := client.List(short, &podresources.ListPodResourcesRequest{})
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		o.errors[err.Error()]++
		return
	}
	o.answers++
	told := holdings(answer.PodResources)
	complete := true
	for pod, want := range o.want {
		complete = complete && slices.Equal(told[pod], want)
	}
	for pod, devices := range told {
		for _, d := range devices {
			if !slices.Contains(o.want[pod], d) {
				o.wrong = append(o.wrong, fmt.Sprintf("pod %s has %s", pod, d))
			}
		}
	}
	o.seen(complete, began)
}
