package kubelet

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/cpupolicy"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// startPlugin starts the machine's device plugin. The ID of a device begins with the number of its NUMA node.
func (m machine) startPlugin(b *testing.B, dir string) {
	var all []*plugintest.Device
	for i := range devices {
		n := i * m.nodes / devices
		all = append(all, plugintest.Dev(fmt.Sprintf("%d-%02d", n, i), plugintest.Healthy, int64(n)))
	}
	plugintest.Start(b, dir, gpu, all...)
}

// placesOf returns the NUMA nodes of devices.
func placesOf[ID ~string](ids []ID) (all [][]int64) {
	for _, id := range ids {
		var n int64
		fmt.Sscanf(string(id), "%d-", &n)
		all = append(all, []int64{n})
	}
	return all
}

// A devmgrd is devmgrd's registry, allocator and store on a machine.
type devmgrd struct{ *node }

func newDevmgrd(b *testing.B, m machine, policy allocator.Policy) *devmgrd {
	n, sockets, err := newNode(b, b.TempDir(), allocator.Topology{Policy: policy})
	if err != nil {
		b.Fatal(err)
	}
	m.startPlugin(b, sockets)
	plugintest.Eventually(b, "the devices are there", func() bool { return n.ledger.Resources().Capacity()[gpu] == devices })
	return &devmgrd{n}
}

// bind adds a pod. With a NUMA node, it waits for devices near that node.
func (d *devmgrd) bind(g *guest, near ...int64) {
	demand := pod(g.name, g.devices)
	for _, n := range near {
		demand.Demands[0].Select = map[device.ResourceName]device.Selection{gpu: {Use: []string{fmt.Sprintf("%d-*", n)}}}
	}
	d.ledger.Bind(demand)
}

// assigned returns the NUMA nodes of a pod's devices, or nil if it waits for them.
func (d *devmgrd) assigned(g *guest) [][]int64 {
	for {
		switch st := d.ledger.Readiness(pod(g.name, g.devices).Demands[0].Container); st.State {
		case device.Ready:
			return placesOf(st.Assignment.Shares[0].IDs)
		case device.Pending:
			<-st.Done
		case device.Waiting:
			return nil
		default:
			d.t.Fatalf("pod %s: %+v", g.name, st)
		}
	}
}

// end has pods go, with their devices.
func (d *devmgrd) end(all []*guest) {
	var pods []device.PodDemand
	for _, g := range all {
		pods = append(pods, pod(g.name, g.devices))
	}
	d.drop(pods...)
}

// free counts the free devices near a NUMA node.
func (d *devmgrd) free(node int64) (n int) {
	for one := range d.ledger.EachDevice(gpu) {
		if one.State == device.StateFree && one.NUMA[0] == int(node) {
			n++
		}
	}
	return n
}

// A policySide is devmgrd, and a CPU policy that follows it.
type policySide struct {
	*devmgrd
	*cpupolicy.Policy
}

func newPolicy(b *testing.B, m machine) placer {
	return policySide{newDevmgrd(b, m, "single-numa-node"), cpupolicy.New(m.near())}
}

func newStrict(b *testing.B, m machine) placer {
	s := newPolicy(b, m).(policySide)
	s.Strict = true
	return s
}

func (s policySide) accept(g *guest) bool {
	s.bind(g)
	return true
}

func (s policySide) start(g *guest) (cpuset.CPUSet, [][]int64, bool) {
	places := s.assigned(g)
	if places == nil {
		return cpuset.CPUSet{}, nil, false
	}
	cpus, _, err := s.Take(g.name, places, g.cpus)
	return cpus, places, err == nil
}

func (s policySide) end(all []*guest) {
	for _, g := range all {
		s.Return(g.name)
	}
	s.devmgrd.end(all)
}

// A kubeletSide is the kubelet's managers.
type kubeletSide struct {
	ctx      context.Context
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	devices  *devicemanager.ManagerImpl // nil: the kubelet knows no devices

	mu   sync.Mutex
	pods map[string]*corev1.Pod // the active ones
}

const gibibyte = 1 << 30

func newKubelet(b *testing.B, m machine) placer {
	return newKubeletSide(b, m, topologymanager.PolicySingleNumaNode, true)
}

// newKubeletSide makes the kubelet's managers. They are as the kubelet's container manager makes them.
func newKubeletSide(b *testing.B, m machine, policy string, withDevices bool) *kubeletSide {
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	quiet, dir := logr.Discard(), b.TempDir()
	k := &kubeletSide{ctx: klog.NewContext(b.Context(), quiet), pods: map[string]*corev1.Pod{}}
	info := &cadvisorapi.MachineInfo{NumCores: m.cpus + m.nodes, NumSockets: m.nodes}
	var system []int
	var reservedMemory []kubeletconfig.MemoryReservation
	for n := range m.nodes {
		cpus, own := m.cpusOf(n)
		system = append(system, own)
		reservedMemory = append(reservedMemory, kubeletconfig.MemoryReservation{NumaNode: int32(n), Limits: corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(gibibyte, resource.BinarySI)}})
		node := cadvisorapi.Node{Id: n, Memory: uint64(4*m.cpus/m.nodes+1) * gibibyte}
		for _, cpu := range append([]int{own}, cpus.List()...) {
			node.Cores = append(node.Cores, cadvisorapi.Core{Id: cpu, Threads: []int{cpu}, SocketID: n})
		}
		info.Topology = append(info.Topology, node)
		info.MemoryCapacity += node.Memory
	}
	reserved := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(m.nodes), resource.DecimalSI), corev1.ResourceMemory: *resource.NewQuantity(int64(m.nodes)*gibibyte, resource.BinarySI)}
	var err error
	k.topology, err = topologymanager.NewManager(quiet, info.Topology, policy, topologymanager.ContainerTopologyScope, nil)
	must(err)
	k.cpus, err = cpumanager.NewManager(quiet, string(cpumanager.PolicyStatic), nil, time.Hour, info, cpuset.New(system...), reserved, dir, k.topology)
	must(err)
	memory, err := memorymanager.NewManager(quiet, string(memorymanager.PolicyTypeStatic), info, reserved, reservedMemory, dir, k.topology)
	must(err)
	active := func() []*corev1.Pod {
		k.mu.Lock()
		defer k.mu.Unlock()
		return slices.Collect(maps.Values(k.pods))
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	must(k.cpus.Start(k.ctx, active, ready, unknownStatus{}, noRuntime{}, containermap.NewContainerMap()))
	must(memory.Start(k.ctx, active, ready, unknownStatus{}, noRuntime{}, containermap.NewContainerMap()))
	if withDevices {
		k.devices, err = newManager(quiet, filepath.Join(dir, "kubelet.sock"), info.Topology, k.topology)
		must(err)
		must(k.devices.Start(quiet, active, ready, containermap.NewContainerMap(), sets.New[string]()))
		b.Cleanup(func() { must(k.devices.Stop(quiet)) })
		m.startPlugin(b, dir)
		plugintest.Eventually(b, "the devices are there", func() bool {
			capacity, _, _ := k.devices.GetCapacity(quiet)
			n := capacity[gpu]
			return n.Value() == devices
		})
		k.topology.AddHintProvider(quiet, k.devices)
	}
	k.topology.AddHintProvider(quiet, k.cpus)
	k.topology.AddHintProvider(quiet, memory)
	return k
}

// unknownStatus knows no pod's status, and noRuntime has no containers: CPUs and memory are chosen when a pod is admitted.
type (
	unknownStatus struct{}
	noRuntime     struct{}
)

func (unknownStatus) GetPodStatus(types.UID) (corev1.PodStatus, bool) {
	return corev1.PodStatus{}, false
}

func (noRuntime) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

func (k *kubeletSide) accept(g *guest) bool {
	p := kubeletPod(g.name)
	all := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(g.cpus), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(int64(g.cpus)*gibibyte, resource.BinarySI),
		gpu:                   *resource.NewQuantity(int64(g.devices), resource.DecimalSI),
	}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: all, Limits: all}
	p.Status.QOSClass = corev1.PodQOSGuaranteed
	k.mu.Lock()
	k.pods[g.name] = p
	k.mu.Unlock()
	admitted := k.topology.Admit(k.ctx, &lifecycle.PodAdmitAttributes{Pod: p, Operation: lifecycle.AddOperation}).Admit
	if !admitted {
		k.end([]*guest{g})
	}
	return admitted
}

func (k *kubeletSide) start(g *guest) (cpuset.CPUSet, [][]int64, bool) {
	var ids []string
	for id := range k.devices.GetDevices(g.name, "main")[gpu] {
		ids = append(ids, id)
	}
	return k.chosen(g), placesOf(ids), true
}

// chosen returns the CPUs that the kubelet has chosen for a pod.
func (k *kubeletSide) chosen(g *guest) cpuset.CPUSet { return k.cpus.GetExclusiveCPUs(g.name, "main") }

func (k *kubeletSide) end(all []*guest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, g := range all {
		delete(k.pods, g.name)
	}
}

// A staticSide is devmgrd for devices, and the kubelet's static managers for CPUs and memory.
type staticSide struct {
	devmgrd *devmgrd
	kubelet *kubeletSide
	follow  bool // devices are near the CPUs if enough are free there
	machine cpupolicy.Machine
}

func newStatic(b *testing.B, m machine) placer {
	return staticSide{newDevmgrd(b, m, "best-effort"), newKubeletSide(b, m, topologymanager.PolicyBestEffort, false), false, m.near()}
}

func newFollowed(b *testing.B, m machine) placer {
	s := newStatic(b, m).(staticSide)
	s.follow = true
	return s
}

func (s staticSide) accept(g *guest) bool {
	if !s.kubelet.accept(g) {
		return false
	}
	var near []int64
	for n, node := range s.machine {
		if s.follow && s.kubelet.chosen(g).IsSubsetOf(node.CPUs) && s.devmgrd.free(n) >= g.devices {
			near = append(near, n)
		}
	}
	s.devmgrd.bind(g, near...)
	return true
}

func (s staticSide) start(g *guest) (cpuset.CPUSet, [][]int64, bool) {
	places := s.devmgrd.assigned(g)
	return s.kubelet.chosen(g), places, places != nil
}

func (s staticSide) end(all []*guest) {
	s.kubelet.end(all)
	s.devmgrd.end(all)
}
