package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const (
	gpu        = "vendor.example/gpu"
	podDevices = 8 // of each pod that is there from the start
)

// node is devmgrd without its daemon: a real ledger with real state file and a real plugin.
type node struct {
	t      testing.TB
	ledger *allocator.Allocator
}

// Size says how much is on a node.
type Size struct{ Pods, Spare int } // Spare devices besides those that the pods have

// newNode makes a node whose state file is in a directory. Plugins register in the directory that it returns.
func newNode(t testing.TB, dir string, topology allocator.Topology) (n *node, sockets string, err error) {
	log, metrics := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	books, err := store.Open(store.Config{Dir: dir, Log: log, Metrics: metrics})
	if err != nil {
		return nil, "", err
	}
	sockets = t.TempDir()
	plugins := registry.New(registry.Config{
		MaxTotalBytes: 256 << 20, SocketDir: sockets, GracePeriod: time.Minute, AllocateTimeout: 30 * time.Second, PreferredTimeout: 5 * time.Second, PreStartTimeout: 30 * time.Second,
		MaxMessageBytes: 64 << 20, MaxDevices: 250_000, MaxResources: 16, Store: books, Log: log, Metrics: metrics,
	})
	n = &node{t, allocator.New(allocator.Config{Registry: plugins, Plugins: plugins, Store: books, Notifier: silent{}, Topology: topology, Log: log, Metrics: metrics})}
	n.ledger.RuntimeSynced(nil, nil)
	if err := plugins.Listen(); err != nil {
		return nil, "", err
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { plugins.Run(ctx, registry.Neighbours{}) })
	running.Go(func() { n.ledger.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		books.Close()
	})
	return n, sockets, nil
}

// ServeDevmgrd makes a node; Window shows it.
func (p *Process) ServeDevmgrd(s Size, _ *none) error {
	t := p.t
	// /tmp may be in memory, where a commit costs nothing.
	dir, err := os.MkdirTemp(".", "bench-")
	if err != nil {
		return err
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n, sockets, err := newNode(t, dir, allocator.Topology{})
	if err != nil {
		return err
	}
	p.node = n
	devices := make([]*plugintest.Device, s.Pods*podDevices+s.Spare)
	for i := range devices {
		devices[i] = plugintest.Dev(fmt.Sprintf("dev-%06d", i), plugintest.Healthy, int64(i%2))
	}
	plugintest.Start(t, sockets, gpu, devices...)
	plugintest.Eventually(t, "the devices are there", func() bool { return p.node.ledger.Resources().Capacity()[gpu] == len(devices) })
	pods := make([]device.PodDemand, s.Pods)
	for i := range pods {
		pods[i] = pod(fmt.Sprintf("pod-%06d", i), podDevices)
		p.node.ledger.Bind(pods[i])
	}
	for _, d := range pods {
		p.node.settle(d)
	}
	return nil
}

// silent does nothing.
type silent struct{}

func (silent) Waiting(device.Pod, device.Wait)                                       {}
func (silent) Assigned(device.Pod, []device.Assignment)                              {}
func (silent) StartedWithoutDevices(device.Pod, string, func() bool)                 {}
func (silent) Failed(device.Pod, device.ResourceName, []device.ID)                   {}
func (silent) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool) {}
func (silent) DeviceRefused(device.ResourceName, device.ID, string)                  {}
func (silent) GivenUp(device.Pod, device.Wait, time.Duration, func() bool)           {}

func pod(name string, devices int) device.PodDemand {
	c := device.Container{Pod: device.PodUID(name), Name: "main"}
	return device.PodDemand{
		Pod: device.Pod{UID: c.Pod, Namespace: "default", Name: name}, Created: time.Now(),
		Demands: []device.Demand{{Container: c, Kind: device.App, Wants: map[device.ResourceName]int{gpu: devices}}}, Containers: []string{c.Name},
	}
}

// settle waits until a pod that is bound has its devices.
func (n *node) settle(d device.PodDemand) {
	for {
		switch st := n.ledger.Readiness(d.Demands[0].Container); st.State {
		case device.Ready:
			return
		case device.Pending:
			<-st.Done
		default:
			n.t.Fatalf("pod %s: %+v", d.Pod, st)
		}
	}
}

// drop has pods go, and waits until nothing is left of them.
func (n *node) drop(pods ...device.PodDemand) {
	going := map[device.PodUID]bool{}
	for _, d := range pods {
		n.ledger.Drop(d.Pod.UID)
		going[d.Pod.UID] = true
	}
	for {
		moved := n.ledger.Updated()
		if !slices.ContainsFunc(n.ledger.Snapshot().Pods, func(h device.PodStatus) bool { return going[h.Pod.UID] }) {
			return
		}
		<-moved
	}
}

// Window says where PodResources is served, and where a kubelet serves, if anywhere.
type Window struct{ Socket, KubeletSocket string }

// Window serves PodResources as devmgrd does, until the process ends.
func (p *Process) Window(w Window, _ *none) error {
	s := podresources.New(podresources.Config{
		Socket: w.Socket, KubeletSocket: w.KubeletSocket, Allocator: p.node.ledger, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	p.t.Cleanup(func() {
		stop()
		running.Wait()
	})
	plugintest.Eventually(p.t, "serving PodResources", func() bool {
		_, err := os.Stat(w.Socket)
		return err == nil
	})
	return nil
}

// Replace has a pod go, and one of the same name come, with as many devices.
func (p *Process) Replace(name string, _ *none) error {
	d := pod(name, podDevices)
	p.node.drop(d)
	p.node.ledger.Bind(d)
	p.node.settle(d)
	return nil
}

// Churn is so many pods that come and go.
type Churn struct {
	Pods   int  // and one more
	AtOnce bool // all come together, and all go together; else one after the other
}

// lastPod comes and goes after all others.
const lastPod = "last"

// Churn has pods come and go. It returns the changes of pods meanwhile.
func (p *Process) Churn(c Churn, events *[]string) error {
	ledger := p.node.ledger
	from := ledger.Snapshot().Revision
	var rounds [][]device.PodDemand
	for i := range c.Pods {
		if !c.AtOnce || i == 0 {
			rounds = append(rounds, nil)
		}
		last := &rounds[len(rounds)-1]
		*last = append(*last, pod(fmt.Sprintf("come-%06d", i), 1))
	}
	for _, pods := range append(rounds, []device.PodDemand{pod(lastPod, 1)}) {
		for _, d := range pods {
			ledger.Bind(d)
		}
		for _, d := range pods {
			p.node.settle(d)
		}
		p.node.drop(pods...)
	}
	changes, known := ledger.ChangesSince(from, 1<<20)
	if !known {
		return errors.New("so many changes that the ledger has forgotten the first ones")
	}
	for _, c := range changes {
		switch {
		case c.After != nil && len(c.After.Assignments) > 0:
			*events = append(*events, event("assigned", string(c.After.Pod.UID), !c.After.Active))
		case c.Before != nil && len(c.Before.Assignments) > 0:
			*events = append(*events, event("released", string(c.Before.Pod.UID), !c.Before.Active))
		}
	}
	return nil
}

// event describes a change of a pod.
func event(what, uid string, ended bool) string { return fmt.Sprint(what, " ", uid, " ", ended) }
