package allocator_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	gpu  device.ResourceName = "vendor.com/gpu"
	nic  device.ResourceName = "vendor.com/nic"
	fpga device.ResourceName = "vendor.com/fpga"
)

// fakePlugins replaces the registry: a test sets its offers and answers.
type fakePlugins struct {
	mu          sync.Mutex
	offers      map[device.ResourceName]device.Offer
	changed     chan struct{}
	asked       []string // "pod/container resource ids", in order
	answer      func(ctx context.Context, pod device.Pod, r device.ResourceName) error
	allocate    func(ctx context.Context, r device.ResourceName, ids []device.ID) error // the same, with the devices
	prepared    []string
	advised     []string // "pod/container resource size of available with must", in order
	prefer      func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error)
	told        []string               // the reports to the pods' owners
	still       func() bool            // of the last pod given up
	alive       map[string]bool        // containers with processes, by the runtime's IDs
	haunted     map[device.PodUID]bool // pods with processes
	walks       int                    // how often the host has been asked about a pod
	looked      []int                  // about how many containers at a time it has been asked
	looks       func()                 // called before each such question; nil: nothing
	forgetFails bool
	forgotten   func() // Forget calls it when it has dropped the resource
	blind       error  // why the host cannot list the pods with processes
	prepare     func(ctx context.Context) error
	prepareIDs  func([]device.ID) // the same, with the devices
	cdi         bool              // Allocate answers with CDI devices
	nodes       bool              // and with a device node and a CDI device for each
	nodeFor     string            // the nodes' names end with the pod's, if it has this name
	padding     int               // needMode many bytes Allocate adds to its answers
	store       interface {
		ForgetResource(device.ResourceName) error
	}
}

func newShop() *fakePlugins {
	return &fakePlugins{offers: map[device.ResourceName]device.Offer{}, changed: make(chan struct{}, 1)}
}

func (s *fakePlugins) offer(r device.ResourceName, edit func(*device.Offer)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offers[r]
	o.Inventory.Resource = r
	edit(&o)
	o.Listed, o.Newest = o.Session+1, max(o.Newest, 1)
	for _, d := range o.Inventory.Devices {
		o.Newest = max(o.Newest, d.Added)
	}
	s.offers[r] = o
	loops.Signal(s.changed)
}

// stock offers n healthy devices, d0 to d<n-1>, those in unhealthy excepted.
func (s *fakePlugins) stock(r device.ResourceName, n int, unhealthy ...int) {
	s.offer(r, func(o *device.Offer) {
		o.Reported, o.State = true, device.Serving
		o.Inventory.Devices = make([]device.Device, n)
		for i := range n {
			o.Inventory.Devices[i] = device.Device{ID: device.ID(fmt.Sprintf("d%d", i)), Healthy: true}
		}
		for _, i := range unhealthy {
			o.Inventory.Devices[i].Healthy = false
		}
	})
}

func (s *fakePlugins) Offers() map[device.ResourceName]device.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.offers)
}

// places puts a resource's devices near NUMA nodes, in turn.
func (s *fakePlugins) places(r device.ResourceName, nodes int) {
	s.offer(r, func(o *device.Offer) {
		devices := slices.Clone(o.Inventory.Devices)
		for i := range devices {
			devices[i].NUMA = []int{i % nodes}
		}
		o.Inventory.Devices = devices
	})
}

// prefers makes a resource's plugin support GetPreferredAllocation, and sets its answers.
func (s *fakePlugins) prefers(r device.ResourceName, f func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error)) {
	s.mu.Lock()
	s.prefer = f
	s.mu.Unlock()
	s.offer(r, func(o *device.Offer) { o.Prefers = true })
}

// answers sets the result of each further Allocate; nil: it grants.
func (s *fakePlugins) answers(f func(context.Context, device.Pod, device.ResourceName) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = f
}

// allocates sets the result of each further Allocate, by its devices.
func (s *fakePlugins) allocates(f func(context.Context, device.ResourceName, []device.ID) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allocate = f
}

// prepares sets the result of each further PreStart; nil: it succeeds.
func (s *fakePlugins) prepares(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepare = f
}

// preparesDevices has each further PreStart call f with its devices.
func (s *fakePlugins) preparesDevices(f func([]device.ID)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prepareIDs = f
}

func (s *fakePlugins) Changed() <-chan struct{} { return s.changed }

func (s *fakePlugins) Allocate(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, ids []device.ID) (device.Grant, error) {
	s.mu.Lock()
	s.asked = append(s.asked, fmt.Sprintf("%s/%s %s %v", pod.Name, c.Name, r, ids))
	answer, allocate := s.answer, s.allocate
	s.mu.Unlock()
	if allocate != nil {
		if err := allocate(ctx, r, ids); err != nil {
			return device.Grant{}, err
		}
	}
	if answer != nil {
		if err := answer(ctx, pod, r); err != nil {
			return device.Grant{}, err
		}
	}
	grant := device.Grant{Env: map[string]string{"IDS": fmt.Sprint(ids)}}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.padding > 0 {
		grant.Env["PADDING"] = strings.Repeat("x", s.padding)
	}
	if s.nodes {
		for _, id := range ids {
			node := "/dev/" + string(id)
			if pod.Name == s.nodeFor {
				node += "-" + pod.Name
			}
			grant.Nodes = append(grant.Nodes, device.Node{HostPath: node})
			grant.CDI = append(grant.CDI, "vendor.com/gpu="+string(id))
		}
	}
	if s.cdi {
		grant.CDI = []string{"vendor.com/gpu=" + string(ids[0])}
	}
	return grant, nil
}

func (s *fakePlugins) Prefer(ctx context.Context, pod device.Pod, c device.Container, r device.ResourceName, available, must []device.ID, size int) ([]device.ID, error) {
	s.mu.Lock()
	s.advised = append(s.advised, fmt.Sprintf("%s/%s %s %d of %v with %v", pod.Name, c.Name, r, size, available, must))
	prefer := s.prefer
	s.mu.Unlock()
	return prefer(ctx, available, must, size)
}

func (s *fakePlugins) Forget(r device.ResourceName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, is := s.offers[r]; is && o.State == device.Serving {
		return &device.InUseError{Resource: r, Serving: true}
	}
	if err := s.store.ForgetResource(r); err != nil {
		return err
	}
	if s.forgetFails {
		return &device.InUseError{Resource: r, Serving: true}
	}
	delete(s.offers, r)
	if s.forgotten != nil {
		s.mu.Unlock()
		s.forgotten()
		s.mu.Lock()
	}
	return nil
}

func (s *fakePlugins) PreStart(ctx context.Context, _ device.Pod, c device.Container, r device.ResourceName, ids []device.ID) error {
	s.mu.Lock()
	s.prepared = append(s.prepared, fmt.Sprintf("%s %s %v", c.Name, r, ids))
	prepare, devices := s.prepare, s.prepareIDs
	s.mu.Unlock()
	if devices != nil {
		devices(ids)
	}
	if prepare != nil {
		return prepare(ctx)
	}
	return nil
}

// ContainersWithProcesses replaces the host's.
func (s *fakePlugins) ContainersWithProcesses(ids []string) (map[string]bool, error) {
	if s.looks != nil {
		s.looks()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked = append(s.looked, len(ids))
	found := map[string]bool{}
	for _, id := range ids {
		found[id] = s.alive[id]
	}
	return found, nil
}

func (s *fakePlugins) PodsWithProcesses(asked []device.PodUID) (map[device.PodUID][]device.Process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := map[device.PodUID][]device.Process{}
	for _, uid := range asked {
		s.walks++
		if s.haunted[uid] {
			found[uid] = []device.Process{{PID: 7, Command: "stuck", Holds: "has not ended"}}
		}
	}
	return found, s.blind
}

// haunt sets the pods that have processes on the host.
func (s *fakePlugins) haunt(pods ...device.PodUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.haunted = map[device.PodUID]bool{}
	for _, uid := range pods {
		s.haunted[uid] = true
	}
}

// setAlive has the host see processes of a container, or none.
func (s *fakePlugins) setAlive(container string, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive == nil {
		s.alive = map[string]bool{}
	}
	s.alive[container] = is
}

func (s *fakePlugins) Waiting(p device.Pod, w device.Wait) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, p.Name+" waits: "+string(w.Reason))
}

func (s *fakePlugins) Failed(p device.Pod, r device.ResourceName, ids []device.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf("%s failed %s/%s", p.Name, r, device.Abridge(ids)))
}

func (s *fakePlugins) DeviceRefused(r device.ResourceName, id device.ID, _ string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf("%s/%s is refused", r, id))
}

func (s *fakePlugins) FailedForLong(p device.Pod, r device.ResourceName, id device.ID, _ func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, fmt.Sprintf("%s failed for long %s/%s", p.Name, r, id))
}

func (s *fakePlugins) GivenUp(p device.Pod, why device.Wait, waited time.Duration, still func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.still = still
	s.told = append(s.told, fmt.Sprintf("%s given up after %v: %s", p.Name, waited, why.Reason))
}

func (s *fakePlugins) StartedWithoutDevices(p device.Pod, container string, _ func() bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, p.Name+"/"+container+" is bare")
}

func (s *fakePlugins) Assigned(p device.Pod, _ []device.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, p.Name+" has its devices")
}
