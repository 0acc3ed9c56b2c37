package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// BenchmarkAllocate measures a pod's way to its device, with the kubelet's device manager and with devmgrd, side by side: the same
// plugin, the same devices, as many pods that have one. The floor is one call to the plugin and one commit of the
// same record to devmgrd's store, which syncs the disk twice; the kubelet syncs once, and renames. Each manager is a process of its own, so that its memory and what it writes can be told.
//
// Churn is pods that are bound together, get their devices, and end together.
//
// Then each manager restarts: how long until it has all devices again, and until a pod gets one? The plugin registers with a new kubelet as soon as the
// kubelet listens, which real plugins do within a second to half a minute. The Node shows 0 meanwhile, with devmgrd its last
// number.
func BenchmarkAllocate(b *testing.B) {
	for _, size := range []struct{ devices, pods, restarts int }{
		{10, 0, 3}, {1000, 100, 3}, {10_000, 1000, 3}, {50_000, 5000, 1}, // the last takes the kubelet more than a minute
	} {
		b.Run(fmt.Sprintf("devices=%d/pods=%d", size.devices, size.pods), func(b *testing.B) {
			kubelet, devmgrd := newManaged(b, "Kubelet", size.devices, size.pods), newManaged(b, "Devmgrd", size.devices, size.pods)
			kubelet.restart(b)
			devmgrd.restart(b)
			var k, d, floor []time.Duration
			kubeletWrote, devmgrdWrote := kubelet.use(b).Written, devmgrd.use(b).Written
			for i := 0; b.Loop(); i++ {
				name := fmt.Sprintf("new-%d", i)
				k = append(k, kubelet.took(b, "Allocate", name))
				// What comes second finds warm caches: by turns.
				if i%2 == 0 {
					d = append(d, devmgrd.took(b, "Allocate", name))
				}
				floor = append(floor, devmgrd.took(b, "Floor", name))
				if i%2 == 1 {
					d = append(d, devmgrd.took(b, "Allocate", name))
				}
			}
			n := float64(len(k))
			kubeletUse, devmgrdUse := kubelet.use(b), devmgrd.use(b)
			b.ReportMetric(0, "ns/op") // it would count all three
			b.ReportMetric(microseconds(median(k)), "µs-kubelet")
			b.ReportMetric(microseconds(median(d)), "µs-devmgrd")
			b.ReportMetric(microseconds(median(floor)), "µs-floor")
			b.ReportMetric(float64(median(d))/float64(median(floor)), "devmgrd/floor")
			b.ReportMetric(float64(median(k))/float64(median(floor)), "kubelet/floor")
			b.ReportMetric(float64(kubeletUse.Written-kubeletWrote)/1024/n, "KiB-kubelet/pod")
			b.ReportMetric(float64(devmgrdUse.Written-devmgrdWrote)/1024/n/2, "KiB-devmgrd/pod") // the floor writes as much
			b.ReportMetric(float64(kubeletUse.Resident)/(1<<20), "MiB-kubelet")
			b.ReportMetric(float64(devmgrdUse.Resident)/(1<<20), "MiB-devmgrd")
			together := min(crowd, size.devices-size.pods)
			var kubeletChurn, devmgrdChurn []time.Duration
			for range churns {
				kubeletChurn = append(kubeletChurn, kubelet.churn(b, together))
				devmgrdChurn = append(devmgrdChurn, devmgrd.churn(b, together))
			}
			b.ReportMetric(float64(together), "pods-together")
			b.ReportMetric(float64(together)/median(kubeletChurn).Seconds(), "pods/s-kubelet")
			b.ReportMetric(float64(together)/median(devmgrdChurn).Seconds(), "pods/s-devmgrd")
			for name, m := range map[string]*managed{"kubelet": kubelet, "devmgrd": devmgrd} {
				var full, first []time.Duration
				for i := range size.restarts {
					full = append(full, m.restart(b))
					first = append(first, m.took(b, "First", fmt.Sprintf("first-%d", i)))
				}
				b.ReportMetric(float64(median(full).Milliseconds()), "ms-full-"+name)
				b.ReportMetric(float64(median(first).Milliseconds()), "ms-first-"+name)
			}
		})
	}
}

// churns is how often pods come and go together, for a median.
const churns = 5

// managed is a manager in a process of its own, and its plugin.
type managed struct {
	kind    string // Kubelet or Devmgrd
	machine Machine
	process *process
	plugin  *plugintest.Plugin
}

func newManaged(b *testing.B, kind string, devices, pods int) *managed {
	b.Helper()
	// /tmp may be in memory, where a commit costs nothing.
	dir, err := os.MkdirTemp(".", "bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	if dir, err = filepath.Abs(dir); err != nil {
		b.Fatal(err)
	}
	m := &managed{kind: kind, machine: Machine{Dir: dir, Sockets: filepath.Join(dir, "s"), Devices: devices, Pods: pods}}
	if kind == "Kubelet" {
		m.machine.Sockets = dir // next to the checkpoint, as on a node
	}
	if err := os.MkdirAll(m.machine.Sockets, 0o755); err != nil {
		b.Fatal(err)
	}
	all := make([]*plugintest.Device, devices)
	for i := range all {
		all[i] = plugintest.Dev(deviceID(i), plugintest.Healthy)
	}
	m.plugin = plugintest.New(b, m.machine.Sockets, gpu, all...)
	return m
}

// restart ends the manager and starts it again, and returns how long it took to have all devices.
func (m *managed) restart(b *testing.B) (took time.Duration) {
	b.Helper()
	again := m.process != nil
	if again {
		m.process.end()
	}
	m.process = startProcess(b)
	m.process.do(b, "Start"+m.kind, m.machine, nil)
	if !again || m.kind == "Kubelet" { // a starting kubelet removes the plugins' sockets, and waits for registrations
		m.plugin.Stop()
		m.plugin.Serve()
		m.plugin.MustRegister()
	}
	m.process.do(b, m.kind+"Full", none{}, &took)
	return took
}

// took has the manager do something for a pod, and returns how long that took.
func (m *managed) took(b *testing.B, what, pod string) (took time.Duration) {
	b.Helper()
	m.process.do(b, m.kind+what, pod, &took)
	return took
}

// churn has so many pods come and go together, and returns how long that took.
func (m *managed) churn(b *testing.B, pods int) (took time.Duration) {
	b.Helper()
	m.process.do(b, m.kind+"Churn", pods, &took)
	return took
}

func (m *managed) use(b *testing.B) (u Use) {
	b.Helper()
	m.process.do(b, "Use", none{}, &u)
	return u
}

// A Machine is what there is on a node: Pods pods with one device each.
type Machine struct {
	Dir, Sockets  string
	Devices, Pods int
}

func deviceID(i int) string { return fmt.Sprintf("dev-%06d", i) }

// Use is what a process has of memory, and has written to disk so far, in bytes.
type Use struct{ Resident, Written int64 }

// Use tells what the process uses.
func (*Process) Use(_ none, u *Use) error {
	memory, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return err
	}
	pages, err := strconv.ParseInt(strings.Fields(string(memory))[1], 10, 64)
	if err != nil {
		return err
	}
	io, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return err
	}
	_, written, _ := strings.Cut(string(io), "\nwrite_bytes: ")
	written, _, _ = strings.Cut(written, "\n")
	u.Resident = pages * int64(os.Getpagesize())
	u.Written, err = strconv.ParseInt(written, 10, 64)
	return err
}

// A manager is what a process has started, and when.
type manager struct {
	began   time.Time
	machine Machine

	kubelet *devicemanager.ManagerImpl
	pods    []*corev1.Pod

	node    *node
	plugins *registry.Registry
	store   *store.Store
}

// StartKubelet starts the kubelet's device manager, with a checkpoint of the machine's pods.
func (p *Process) StartKubelet(m Machine, _ *none) error {
	p.manager = &manager{began: time.Now(), machine: m}
	file := filepath.Join(m.Dir, "kubelet_internal_checkpoint")
	if _, err := os.Stat(file); err != nil {
		var entries []checkpoint.PodDevicesEntry
		for i := range m.Pods {
			entries = append(entries, checkpoint.PodDevicesEntry{
				PodUID: oldPod(i), ContainerName: "main", ResourceName: gpu, DeviceIDs: checkpoint.DevicesPerNUMA{-1: {deviceID(i)}},
			})
		}
		files, err := checkpointmanager.NewCheckpointManager(m.Dir)
		if err != nil {
			return err
		}
		if err := files.CreateCheckpoint(filepath.Base(file), checkpoint.New(entries, nil)); err != nil {
			return err
		}
	}
	for i := range m.Pods {
		p.manager.pods = append(p.manager.pods, kubeletPod(oldPod(i)))
	}
	quiet := logr.Discard()
	k, err := newManager(quiet, filepath.Join(m.Sockets, "kubelet.sock"), nil, topologymanager.NewFakeManager(quiet))
	if err != nil {
		return err
	}
	p.manager.kubelet = k
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := k.Start(quiet, func() []*corev1.Pod { return p.manager.pods }, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	p.t.Cleanup(func() { k.Stop(quiet) })
	return nil
}

// KubeletFirst returns how long after the start a pod has a device.
func (p *Process) KubeletFirst(name string, took *time.Duration) error {
	var ignored time.Duration
	if err := p.KubeletAllocate(name, &ignored); err != nil { // it has all devices already
		return err
	}
	*took = time.Since(p.manager.began)
	return nil
}

// DevmgrdFirst returns how long after the start a pod has a device.
func (p *Process) DevmgrdFirst(name string, took *time.Duration) error {
	d, ledger := pod(name, 1), p.manager.node.ledger
	ledger.Bind(d)
	for {
		moved := ledger.Updated()
		if ledger.Readiness(d.Demands[0].Container).State == device.Ready {
			break
		}
		<-moved
	}
	*took = time.Since(p.manager.began)
	p.manager.node.drop(d)
	return nil
}

func newPod(i int) string { return fmt.Sprintf("churn-%06d", i) }

func oldPod(i int) string { return fmt.Sprintf("old-%06d", i) }

func kubeletPod(name string) *corev1.Pod {
	one := corev1.ResourceList{gpu: resource.MustParse("1")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Limits: one, Requests: one}}}},
	}
}

// KubeletFull waits until the device manager shows all devices, and returns how long after its start that was.
func (p *Process) KubeletFull(_ none, took *time.Duration) error {
	for {
		capacity, _, _ := p.manager.kubelet.GetCapacity(logr.Discard())
		if n := capacity[gpu]; n.Value() == int64(p.manager.machine.Devices) {
			*took = time.Since(p.manager.began)
			return nil
		}
		time.Sleep(time.Millisecond) // the device manager signals no change of its capacity
	}
}

// KubeletAllocate has a pod get a device, which is what is timed, and lose it.
func (p *Process) KubeletAllocate(name string, took *time.Duration) error {
	m := p.manager
	pod := kubeletPod(name)
	m.pods = append(m.pods, pod)
	start := time.Now()
	if err := m.kubelet.Allocate(p.t.Context(), pod, &pod.Spec.Containers[0], lifecycle.AddOperation); err != nil {
		return err
	}
	*took = time.Since(start)
	m.pods = m.pods[:len(m.pods)-1]
	m.kubelet.UpdateAllocatedDevices(logr.Discard())
	return nil
}

// KubeletChurn has pods come and go together. The kubelet admits them one after the other.
func (p *Process) KubeletChurn(pods int, took *time.Duration) error {
	m, start := p.manager, time.Now()
	for i := range pods {
		pod := kubeletPod(newPod(i))
		m.pods = append(m.pods, pod)
		if err := m.kubelet.Allocate(p.t.Context(), pod, &pod.Spec.Containers[0], lifecycle.AddOperation); err != nil {
			return err
		}
	}
	m.pods = m.pods[:len(m.pods)-pods]
	m.kubelet.UpdateAllocatedDevices(logr.Discard())
	*took = time.Since(start)
	return nil
}

// StartDevmgrd starts devmgrd's registry, allocator and store, with a state file of the machine's pods.
func (p *Process) StartDevmgrd(m Machine, _ *none) error {
	t, log, metrics := p.t, slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	p.manager = &manager{began: time.Now(), machine: m}
	books, err := store.Open(store.Config{Dir: m.Dir, Log: log, Metrics: metrics})
	if err != nil {
		return err
	}
	known, err := books.State()
	if err != nil {
		return err
	}
	if len(known.Pods) == 0 && m.Pods > 0 {
		for i := range m.Pods {
			known.Pods = append(known.Pods, record(pod(oldPod(i), 1), device.ID(deviceID(i)), device.Grant{}))
		}
		if err := books.SavePods(known.Pods, nil); err != nil {
			return err
		}
		p.manager.began = time.Now()
	}
	plugins := registry.New(registry.Config{
		MaxTotalBytes: 256 << 20, SocketDir: m.Sockets, GracePeriod: time.Minute, AllocateTimeout: 30 * time.Second, PreferredTimeout: 5 * time.Second, PreStartTimeout: 30 * time.Second,
		MaxMessageBytes: 64 << 20, MaxDevices: 250_000, MaxResources: 16, Known: known.Plugins, Store: books, Log: log, Metrics: metrics,
	})
	p.manager.node = &node{t, allocator.New(allocator.Config{Registry: plugins, Plugins: plugins, Store: books, Notifier: silent{}, Known: known.Pods, Log: log, Metrics: metrics})}
	p.manager.plugins, p.manager.store = plugins, books
	p.manager.node.ledger.RuntimeSynced(nil, nil)
	if err := plugins.Listen(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { plugins.Run(ctx, registry.Neighbours{}) })
	running.Go(func() { p.manager.node.ledger.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		books.Close()
	})
	return nil
}

// DevmgrdFull waits until devmgrd shows all devices, and returns how long after its start that was.
func (p *Process) DevmgrdFull(_ none, took *time.Duration) error {
	for {
		moved := p.manager.node.ledger.Updated()
		if p.manager.node.ledger.Resources().Capacity()[gpu] == p.manager.machine.Devices {
			*took = time.Since(p.manager.began)
			return nil
		}
		<-moved
	}
}

// DevmgrdAllocate has a pod get a device, which is what is timed, and lose it.
func (p *Process) DevmgrdAllocate(name string, took *time.Duration) error {
	d := pod(name, 1)
	start := time.Now()
	p.manager.node.ledger.Bind(d)
	p.manager.node.settle(d)
	*took = time.Since(start)
	p.manager.node.drop(d)
	return nil
}

// DevmgrdChurn has pods come and go together.
func (p *Process) DevmgrdChurn(pods int, took *time.Duration) error {
	all := make([]device.PodDemand, pods)
	for i := range all {
		all[i] = pod(newPod(i), 1)
	}
	start := time.Now()
	for _, d := range all {
		p.manager.node.ledger.Bind(d)
	}
	for _, d := range all {
		p.manager.node.settle(d)
	}
	p.manager.node.drop(all...)
	*took = time.Since(start)
	return nil
}

// DevmgrdFloor calls the plugin once, and commits the same record once.
func (p *Process) DevmgrdFloor(name string, took *time.Duration) error {
	d, id := pod(name, 1), device.ID(deviceID(p.manager.machine.Devices-1))
	start := time.Now()
	grant, err := p.manager.plugins.Allocate(p.t.Context(), d.Pod, d.Demands[0].Container, gpu, []device.ID{id})
	if err != nil {
		return err
	}
	if err := p.manager.store.SavePods([]device.PodRecord{record(d, id, grant)}, nil); err != nil {
		return err
	}
	*took = time.Since(start)
	return p.manager.store.SavePods(nil, []device.PodUID{d.Pod.UID})
}

func record(d device.PodDemand, id device.ID, grant device.Grant) device.PodRecord {
	return device.PodRecord{Demand: d, Assignments: []device.Assignment{{
		Container: d.Demands[0].Container, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{id}, Grant: grant}},
	}}}
}
