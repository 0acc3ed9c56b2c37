package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/podstatus"
)

const gpu = device.ResourceName("vendor.example/gpu")

// A node is one simulated machine.
type node struct {
	name    string
	config  *rest.Config // the administrator's
	kubelet *meter
	devmgrd *meter

	work  sync.WaitGroup
	close context.CancelFunc // of the devmgrd that runs; nil: none
	ready func() error
}

// own returns a configuration with connections of its own, which the meter counts.
func own(config *rest.Config, m *meter) *rest.Config {
	c := rest.CopyConfig(config)
	dialer := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) { // a Dial of its own keeps client-go from sharing connections
		conn, err := dialer.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return m.conn(conn), nil
	}
	c.Wrap(m.transport)
	c.QPS, c.Burst = 50, 100
	return c
}

// startKubelet registers the node and runs a thin kubelet: what a kubelet writes and watches at the API server.
func (n *node) startKubelet(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(own(n.config, n.kubelet))
	if err != nil {
		return err
	}
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: map[string]string{"kubernetes.io/hostname": n.name, "kubernetes.io/os": "linux"}},
		Status: corev1.NodeStatus{
			Capacity:   corev1.ResourceList{"cpu": resource.MustParse("64"), "memory": resource.MustParse("512Gi"), "pods": resource.MustParse("110")},
			Conditions: []corev1.NodeCondition{readyCondition()},
			NodeInfo:   corev1.NodeSystemInfo{KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "containerd://2.4.2", OSImage: "Debian GNU/Linux 12", Architecture: "amd64", OperatingSystem: "linux"},
		},
	}
	object.Status.Allocatable = object.Status.Capacity
	if err := again(ctx, func() error {
		_, err := client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}); err != nil {
		return err
	}
	n.work.Go(func() { n.lease(ctx, client) })
	n.work.Go(func() { n.heartbeat(ctx, client) })
	follow := func(client rest.Interface, resource string, selector fields.Selector, object runtime.Object, handle cache.ResourceEventHandlerFuncs) {
		_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, selector), ObjectType: object, Handler: handle,
		})
		n.work.Go(func() { controller.RunWithContext(ctx) })
	}
	life := make(chan *corev1.Pod, 1000)
	n.work.Go(func() { n.runPods(ctx, client, life) })
	follow(client.CoreV1().RESTClient(), "pods", fields.OneTermEqualSelector("spec.nodeName", n.name), &corev1.Pod{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { life <- o.(*corev1.Pod) },
		UpdateFunc: func(_, o any) { life <- o.(*corev1.Pod) },
	})
	none := cache.ResourceEventHandlerFuncs{}
	follow(client.CoreV1().RESTClient(), "nodes", fields.OneTermEqualSelector("metadata.name", n.name), &corev1.Node{}, none)
	follow(client.CoreV1().RESTClient(), "services", fields.Everything(), &corev1.Service{}, none)
	follow(client.StorageV1().RESTClient(), "csidrivers", fields.Everything(), &storagev1.CSIDriver{}, none)
	follow(client.NodeV1().RESTClient(), "runtimeclasses", fields.Everything(), &nodev1.RuntimeClass{}, none)
	return nil
}

func readyCondition() corev1.NodeCondition {
	now := metav1.Now()
	return corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}
}

// lease renews the node's lease every 10 s, as kubelets do.
func (n *node) lease(ctx context.Context, client kubernetes.Interface) {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	seconds := int32(40)
	var held *coordinationv1.Lease
	for ctx.Err() == nil {
		now := metav1.NowMicro()
		var err error
		if held == nil {
			held, err = leases.Create(ctx, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: n.name},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: &seconds, RenewTime: &now},
			}, metav1.CreateOptions{})
		} else {
			held = held.DeepCopy()
			held.Spec.RenewTime = &now
			held, err = leases.Update(ctx, held, metav1.UpdateOptions{})
		}
		if err != nil {
			if held, err = leases.Get(ctx, n.name, metav1.GetOptions{}); err != nil {
				held = nil
			}
		}
		pause(ctx, 10*time.Second+rand.N(400*time.Millisecond))
	}
}

// heartbeat writes the node's status every 5 min, as kubelets do when nothing changes.
func (n *node) heartbeat(ctx context.Context, client kubernetes.Interface) {
	pause(ctx, rand.N(5*time.Minute))
	for ctx.Err() == nil {
		body := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","lastHeartbeatTime":%q}]}}`, time.Now().UTC().Format(time.RFC3339))
		_, _ = client.CoreV1().Nodes().PatchStatus(ctx, n.name, body)
		pause(ctx, 5*time.Minute)
	}
}

// runPods writes for each pod what a kubelet does: two statuses and three events at its start, and at its end a status and the
// deletion.
func (n *node) runPods(ctx context.Context, client kubernetes.Interface, life <-chan *corev1.Pod) {
	const started, ended = 1, 2
	at := map[types.UID]int{}
	for {
		var p *corev1.Pod
		select {
		case p = <-life:
		case <-ctx.Done():
			return
		}
		status := func(text string) {
			_, _ = client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "status")
		}
		switch {
		case p.DeletionTimestamp != nil && at[p.UID] < ended:
			at[p.UID] = ended
			status(`{"status":{"phase":"Succeeded"}}`)
			now := int64(0)
			_ = client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		case p.DeletionTimestamp == nil && at[p.UID] < started:
			at[p.UID] = started
			status(`{"status":{"conditions":[{"type":"PodScheduled","status":"True"},{"type":"Initialized","status":"True"}]}}`)
			for _, reason := range []string{"Pulled", "Created", "Started"} {
				_, _ = client.CoreV1().Events(p.Namespace).Create(ctx, &corev1.Event{
					ObjectMeta:     metav1.ObjectMeta{GenerateName: p.Name + "."},
					InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}, Reason: reason, Type: "Normal",
				}, metav1.CreateOptions{})
			}
			status(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`)
		}
	}
}

// startDevmgrd runs devmgrd's parts that use the API server, with eight devices.
func (n *node) startDevmgrd(ctx context.Context) error {
	client, err := kube.NewClient(own(n.config, n.devmgrd), "devmgrd/scale")
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	events := pods.NewEvents(n.name, client)
	devices := newLedger(events)
	bound := pods.New(pods.Config{NodeName: n.name, Client: client, Sink: devices, Runtime: nri.NewPresence(), Log: log})
	dir, err := placeholderDir()
	if err != nil {
		return err
	}
	status := nodestatus.New(nodestatus.Config{
		NodeName: n.name, Client: client, View: devices, Notifier: events, Cordons: devices,
		Components: func() []device.Component { return []device.Component{{Name: "pods", Err: bound.Check()}} },
		Ignored:    pods.Ignores(nil), KubeletDir: dir, Log: log, Metrics: prometheus.NewRegistry(),
	})
	conditions := podstatus.New(podstatus.Config{Client: client, View: devices, Pods: bound, Log: log, Metrics: prometheus.NewRegistry()})
	ctx, n.close = context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return events.Run(ctx) })
	group.Go(func() error { return bound.Run(ctx) })
	group.Go(func() error { return status.Run(ctx) })
	group.Go(func() error { return conditions.Run(ctx) })
	n.ready = func() error {
		if err := bound.Check(); err != nil {
			return err
		}
		return status.Check()
	}
	n.work.Go(func() { _ = group.Wait() })
	return nil
}

// again tries until it succeeds.
func again(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		pause(ctx, time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A ledger stands for the allocator: it has eight devices, and assigns at once.
type ledger struct {
	events *pods.Events

	mu      sync.Mutex
	bound   map[device.PodUID]device.PodStatus
	listed  bool
	updated chan struct{}
}

func newLedger(events *pods.Events) *ledger {
	return &ledger{events: events, bound: map[device.PodUID]device.PodStatus{}, updated: make(chan struct{})}
}

// longestList is the longest list of pods that any node has received.
var longestList atomic.Int64

func (l *ledger) Bind(d device.PodDemand) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.bound[d.Pod.UID]; known || len(d.Demands) == 0 {
		return
	}
	has := &device.PodAllocation{Pod: d.Pod, Active: true, Assignments: []device.Assignment{{
		Container: d.Demands[0].Container, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{"GPU-0"}}},
	}}}
	l.bound[d.Pod.UID] = device.PodStatus{PodAllocation: has, State: device.Ready, Demands: d.Demands, HealthKnown: true}
	l.events.Assigned(d.Pod, has.Assignments)
	l.moveLocked()
}

func (l *ledger) Drop(uid device.PodUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bound, uid)
	l.moveLocked()
}

func (l *ledger) moveLocked() {
	close(l.updated)
	l.updated = make(chan struct{})
}

func (l *ledger) Snapshot() *device.Snapshot {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &device.Snapshot{Pods: slices.Collect(maps.Values(l.bound))}
}

func (l *ledger) Replace(all []device.PodDemand) {
	for {
		most := longestList.Load()
		if int64(len(all)) <= most || longestList.CompareAndSwap(most, int64(len(all))) {
			break
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.listed {
		l.listed = true
		l.moveLocked()
	}
}

func (l *ledger) Resources() device.Resources {
	l.mu.Lock()
	defer l.mu.Unlock()
	var eight []device.Device
	for i := range 8 {
		eight = append(eight, device.Device{ID: device.ID(fmt.Sprintf("GPU-%d", i)), Healthy: true})
	}
	offer := device.Offer{Inventory: device.Inventory{Resource: gpu, Devices: eight}, Reported: true}
	return device.Resources{PodsListed: l.listed, ByName: map[device.ResourceName]device.ResourceStatus{gpu: {Offer: &offer, Capacity: 8}}}
}

func (l *ledger) Updated() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.updated
}

func (l *ledger) ResourcesRemoved([]device.ResourceName) error { return nil }
func (l *ledger) DeclareCordons([]device.Cordon) error         { return nil }
