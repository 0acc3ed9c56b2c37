package dra_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

const gpu device.ResourceName = "a.example/gpu"

type places = map[device.ID]int

// node is the rest of devmgrd: what the allocator, the state file and the operator would say.
type node struct {
	mu        sync.Mutex
	resources map[device.ResourceName]*device.Offer
	devices   map[device.ResourceName][]device.DeviceStatus
	claimed   map[device.ID]bool // for pods
	awaited   bool               // a pod without a claim waits
	partial   bool               // not all pods are counted
	changed   chan struct{}

	refused   map[device.ResourceName]bool // not offered
	unread    bool                         // the Node has not been read yet
	since     time.Time                    // when the Node stopped showing the resources; zero: it never showed them
	counted   bool                         // the Node shows them
	retoken   chan struct{}
	saved     map[device.ResourceName]places
	saves     int
	full      error // of SavePlaces
	anonymous bool  // the Node's UID is not known
	most      int
	slices    *dra.Slices // of the latest Publisher
}

func newNode() *node {
	return &node{resources: map[device.ResourceName]*device.Offer{}, devices: map[device.ResourceName][]device.DeviceStatus{}, changed: make(chan struct{}),
		refused: map[device.ResourceName]bool{}, retoken: make(chan struct{}, 1), saved: map[device.ResourceName]places{}, most: 2048}
}

// change changes the node and signals it as the allocator does.
func (n *node) change(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	close(n.changed)
	n.changed = make(chan struct{})
}

// list has the plugin of a resource list so many devices.
func (n *node) list(r device.ResourceName, count int) {
	n.change(func() {
		offer := &device.Offer{Reported: true, Session: 1}
		var all []device.DeviceStatus
		for i := range count {
			d := device.Device{ID: device.ID(fmt.Sprint("d", i)), Healthy: true}
			offer.Inventory.Devices = append(offer.Inventory.Devices, d)
			all = append(all, device.DeviceStatus{Resource: r, Device: d, State: device.StateFree, Listed: true})
		}
		n.resources[r], n.devices[r] = offer, all
	})
}

// touch changes one device.
func (n *node) touch(r device.ResourceName, i int, f func(*device.DeviceStatus)) {
	n.change(func() {
		n.devices[r] = slices.Clone(n.devices[r])
		f(&n.devices[r][i])
	})
}

func (n *node) cordon(r device.ResourceName, i int, on bool) {
	n.touch(r, i, func(d *device.DeviceStatus) {
		d.Cordon, d.State = nil, device.StateFree
		if on {
			d.Cordon, d.State = &device.Cordon{}, device.StateCordoned
		}
	})
}

func (n *node) Resources() device.Resources {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{}, PodsListed: !n.partial}
	for r, offer := range n.resources {
		all.ByName[r] = device.ResourceStatus{Offer: offer}
	}
	return all
}

func (n *node) Devices(r device.ResourceName) ([]device.DeviceStatus, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all, known := n.devices[r]
	all = slices.Clone(all)
	for i, d := range all {
		all[i].Claimed = n.claimed[d.ID]
		all[i].Claimable = d.Listed && (all[i].Claimed || d.Holder == nil && !n.awaited)
	}
	return all, known
}

func (n *node) Updated() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *node) SavePlaces(r device.ResourceName, of map[device.ID]int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.saves++
	if n.full == nil {
		n.saved[r] = of
	}
	return n.full
}

func (n *node) isClaimed(r device.ResourceName) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.refused[r]
}

func (n *node) Uncounted(device.ResourceName) (since time.Time, uncounted, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.since, !n.counted, !n.unread
}

// refuse has a resource's devices offered or not.
func (n *node) refuse(r device.ResourceName, is bool) {
	n.mu.Lock()
	n.refused[r] = is
	n.mu.Unlock()
	n.retoken <- struct{}{}
}

func (n *node) uid() (types.UID, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return "node-uid", !n.anonymous
}

// publish runs a Publisher until the test ends, or until stop.
func publish(t *testing.T, api *kubetest.Server, n *node) (p *dra.Publisher, registry *prometheus.Registry, stop func()) {
	t.Helper()
	registry = prometheus.NewRegistry()
	n.mu.Lock()
	known := maps.Clone(n.saved)
	n.mu.Unlock()
	n.slices = dra.NewSlices("n1", api.ResourceClient(), kubetest.Log(t))
	p = dra.New(dra.PublisherConfig{NodeName: "n1", Client: api.ResourceClient(), View: n, Claimed: n.isClaimed, Node: n, Slices: n.slices, NodeChanged: n.retoken, Places: n, Known: known,
		Order: func(device.ResourceName) []device.ID { return nil }, TooMany: func(device.ResourceName) bool { return false },
		NodeUID: n.uid, MaxDevices: n.most, Sysfs: t.TempDir(), Procfs: t.TempDir(), Log: kubetest.Log(t), Metrics: registry})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		before := shows(api)
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run does not end with its context")
		}
		if after := shows(api); !maps.Equal(before, after) {
			t.Errorf("ending changed %v to %v", before, after)
		}
	})
	t.Cleanup(stop)
	return p, registry, stop
}

// shows returns by pool how many devices its slice has, the generation, and the devices with taints.
func shows(api *kubetest.Server) map[string]string {
	all := map[string]string{}
	for _, s := range api.ResourceSlices() {
		text := fmt.Sprintf("%d at %d", len(s.Spec.Devices), s.Spec.Pool.Generation)
		for _, d := range s.Spec.Devices {
			for _, taint := range d.Taints {
				text += " " + d.Name + "+" + strings.TrimPrefix(taint.Key, "devmgrd.io/")
			}
		}
		all[s.Spec.Pool.Name] = text
	}
	return all
}

const pool = "n1/a.example/gpu/"

func untilShows(t *testing.T, api *kubetest.Server, want map[string]string) {
	t.Helper()
	kubetest.Until(t, fmt.Sprintf("the slices are %v", want), func() bool { return maps.Equal(shows(api), want) })
}

func untilSettled(t *testing.T, p *dra.Publisher) {
	t.Helper()
	kubetest.Until(t, "the publisher is content", func() bool { return p.Check() == nil })
}

// writes returns the number of writes so far.
func writes(api *kubetest.Server) int {
	return api.Requests("create") + api.Requests("update") + api.Requests("delete")
}

// at moves the fake clock by d and lets everything that follows happen.
func at(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
