package plugintest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// The words of the API, so that tests of other rooms need not import it.
type (
	Device           = pluginapi.Device
	AllocateRequest  = pluginapi.AllocateRequest
	AllocateResponse = pluginapi.AllocateResponse
	RegisterRequest  = pluginapi.RegisterRequest
	Options          = pluginapi.DevicePluginOptions
	Answer           = pluginapi.ContainerAllocateResponse

	PreferredRequest  = pluginapi.PreferredAllocationRequest
	PreferredResponse = pluginapi.PreferredAllocationResponse
	PreferredAnswer   = pluginapi.ContainerPreferredAllocationResponse
)

// A Method is a call of the API.
type Method string

// The calls that a manager makes.
const (
	GetOptions   Method = "GetDevicePluginOptions"
	ListAndWatch Method = "ListAndWatch"
	Allocate     Method = "Allocate"
	PreStart     Method = "PreStartContainer"
	Preferred    Method = "GetPreferredAllocation"
	GetInfo      Method = "GetInfo"
	Notify       Method = "NotifyRegistrationStatus"
)

// A Request is a call that the plugin has seen.
type Request struct {
	Method          Method
	IDs             []string // of Allocate (its first container) and PreStart
	Available, Must []string // of Preferred (its first container)
	Size            int      // likewise
	Status          *Status  // of Notify
	Metadata        metadata.MD
}

// A Plugin offers the devices of one resource. Its exported fields are set before Serve; everything else may be
// ordered at any time, and outlives Stop, so that a plugin may Serve again.
type Plugin struct {
	Dir      string // where our socket is; to Register, the manager's socket directory
	Endpoint string // our socket's name in it; New makes one from the resource
	Resource string
	Options  *Options
	Info     *Info // what GetInfo answers; nil: see Announce
	Stubborn bool  // streams do not end when the manager has gone, and go on sending

	// Gate, if there is one, keeps the plugin from taking connections, though it listens, until it is closed.
	Gate <-chan struct{}

	// OnAllocate answers Allocate; nil: each container gets the variable DEVICES with its IDs.
	OnAllocate func(context.Context, *AllocateRequest) (*AllocateResponse, error)

	// OnPrefer answers GetPreferredAllocation; nil: what must be, and the first of what is available.
	OnPrefer func(context.Context, *PreferredRequest) (*PreferredResponse, error)

	t testing.TB

	mu       sync.Mutex // guards what follows
	devices  []*Device
	version  int           // of devices
	changed  chan struct{} // closed and replaced when devices or streams change
	streams  map[int]error // open streams; an error ends one
	opened   int
	before   map[Method]func(context.Context) error
	requests []Request
	server   *server
	announce []*Announcement
	stopped  chan struct{} // closed by Kill, made by Serve: the end of stubborn streams
	conns    atomic.Int32  // open connections, to any of our sockets
}

// New makes a plugin that has not begun to serve. It is stopped, and its socket removed, when the test ends.
func New(t testing.TB, dir, resource string, devices ...*Device) *Plugin {
	p := &Plugin{
		Dir: dir, Resource: resource,
		Endpoint: strings.NewReplacer("/", "-").Replace(resource) + ".sock",
		Options:  &Options{},
		t:        t, devices: devices, version: 1,
		changed: make(chan struct{}),
		streams: make(map[int]error),
		before:  make(map[Method]func(context.Context) error),
	}
	t.Cleanup(p.Stop)
	return p
}

// Start makes a plugin, serves and registers it.
func Start(t testing.TB, dir, resource string, devices ...*Device) *Plugin {
	t.Helper()
	p := New(t, dir, resource, devices...)
	p.Serve()
	p.MustRegister()
	return p
}

// Socket is the path of the plugin's socket.
func (p *Plugin) Socket() string { return filepath.Join(p.Dir, p.Endpoint) }

// Serve listens on the plugin's socket, in place of a file that is there, and returns when it does. If Info is set the
// same socket serves pluginregistration/v1 too.
func (p *Plugin) Serve() {
	p.t.Helper()
	p.mu.Lock()
	p.stopped = make(chan struct{})
	p.mu.Unlock()
	server := p.listen(p.Socket(), true, p.Info != nil)
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
}

// Stop ends the plugin and removes its sockets, as an orderly plugin does.
func (p *Plugin) Stop() {
	p.mu.Lock()
	announce := p.announce
	p.mu.Unlock()
	p.Kill()
	_ = os.Remove(p.Socket()) // it may never have been there
	for _, a := range announce {
		_ = os.Remove(a.path)
	}
}

// Kill ends the plugin and leaves its sockets behind.
func (p *Plugin) Kill() {
	p.mu.Lock()
	server, stopped, announce := p.server, p.stopped, p.announce
	p.server, p.announce = nil, nil
	p.mu.Unlock()
	if server != nil {
		close(stopped)
		server.end()
	}
	for _, a := range announce {
		a.server.end()
	}
}

// Register calls the manager, for a minute at most, and returns its answer.
func (p *Plugin) Register() error {
	return p.RegisterAs(&RegisterRequest{Version: pluginapi.Version, Endpoint: p.Endpoint, ResourceName: p.Resource})
}

// RegisterAs sends a request of the test's own making.
func (p *Plugin) RegisterAs(request *RegisterRequest) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return Register(ctx, p.Dir, request)
}

// MustRegister fails the test if Register fails.
func (p *Plugin) MustRegister() {
	p.t.Helper()
	if err := p.Register(); err != nil {
		p.t.Fatalf("register %s: %v", p.Resource, err)
	}
}

// Register sends a request to the manager that listens in dir.
func Register(ctx context.Context, dir string, request *RegisterRequest) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, request)
	return err
}

// Set replaces the devices; open streams send the new list, even if it is the same.
func (p *Plugin) Set(devices ...*Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	p.version++
	p.wakeLocked()
}

// Listed returns the devices as they were set last.
func (p *Plugin) Listed() []*Device {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.devices)
}

// Resend makes open streams send the list once more.
func (p *Plugin) Resend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version++
	p.wakeLocked()
}

// SetHealth returns one device another health and sends the list.
func (p *Plugin) SetHealth(id, health string) {
	devices := p.Listed()
	for i, d := range devices {
		if d.ID == id {
			d = proto.CloneOf(d)
			d.Health = health
			devices[i] = d
		}
	}
	p.Set(devices...)
}

// Before runs f ahead of each answer to the method; its error is the answer. nil clears it.
func (p *Plugin) Before(m Method, f func(context.Context) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before[m] = f
}

// EndStreams ends the streams that are open; nil ends them in good order.
func (p *Plugin) EndStreams(err error) {
	if err == nil {
		err = errEnd
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.streams {
		p.streams[id] = err
	}
	p.wakeLocked()
}

// Streams is the number of open streams.
func (p *Plugin) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// EndedStreams is the number of streams that have been open, and are no longer.
func (p *Plugin) EndedStreams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened - len(p.streams)
}

// Connections is the number of connections that managers have to the plugin's sockets.
func (p *Plugin) Connections() int { return int(p.conns.Load()) }

// Requests returns what the plugin was asked, in order.
func (p *Plugin) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Calls counts how often a method was called.
func (p *Plugin) Calls(m Method) int {
	n := 0
	for _, r := range p.Requests() {
		if r.Method == m {
			n++
		}
	}
	return n
}

func (p *Plugin) wakeLocked() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// seen notes a call and does what was ordered for it.
func (p *Plugin) seen(ctx context.Context, r Request) error {
	r.Metadata, _ = metadata.FromIncomingContext(ctx)
	p.mu.Lock()
	p.requests = append(p.requests, r)
	f := p.before[r.Method]
	p.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(ctx)
}
