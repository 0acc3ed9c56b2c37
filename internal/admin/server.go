package admin

import (
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// A View shows pods, resources and devices. Its methods return at once.
type View interface {
	Snapshot() *device.Snapshot
	Resources() device.Resources
	// Devices returns the devices of a resource, or of all; false: there is no such resource.
	Devices(device.ResourceName) (all []device.DeviceStatus, known bool)
	// EachDevice yields the same one by one.
	EachDevice(device.ResourceName) iter.Seq[device.DeviceStatus]
	// WouldRefuse returns the first container of a served pod that would not be created now, and why; nil: there is none.
	WouldRefuse(device.PodUID) (container string, why *device.Wait)
	// Updated returns a channel that is closed when any of these changes after the call.
	Updated() <-chan struct{}
}

// An Allocator takes devices out of service. Its methods write to the disk.
type Allocator interface {
	// Cordon takes devices out of service, durably: all, or with an error none. A *device.UnknownDeviceError names a missing
	// device.
	Cordon([]device.Cordon) (held []device.Cordon, err error)
	// Uncordon puts devices back into service.
	Uncordon([]device.Cordon) (lifted []device.Cordon, err error)
	// Forget removes a resource, durably, with its cordons. A *device.InUseError names its user.
	Forget(device.ResourceName) (lifted []device.Cordon, err error)
}

// Rules know the grants of device plugins.
type Rules interface {
	Seen() []device.PluginGrants
}

// Plugins know the sockets and pods of device plugins.
type Plugins interface {
	Registrations() map[device.ResourceName]device.Registration
}

// Evictions evict pods.
type Evictions interface {
	// Evict evicts a pod as soon as its disruption budget allows, unless still returns false by then. It returns at once.
	Evict(pod device.Pod, why string, still func() bool)
}

// Pods read single pods from the API server.
type Pods interface {
	// Find reads a pod of this node that the allocator does not know, and binds it there; false: no such pod, or it has ended.
	Find(ctx context.Context, namespace, name string) (bool, error)
	// Ended reads how a pod of this node ended; false: no such pod has ended.
	Ended(ctx context.Context, namespace, name string) (device.EndedPod, bool, error)
}

// A History holds past and current assignments.
type History interface {
	// Spans returns the recorded spans that had not ended by then, in the order of their beginnings.
	Spans(since time.Time) ([]device.Span, error)
}

// An ActionLog records operators' commands.
type ActionLog interface {
	// SaveActions makes actions durable.
	SaveActions(...device.Action) error
	// Actions returns the recorded actions since then, in the order of their times.
	Actions(since time.Time) ([]device.Action, error)
}

// Config is what New needs.
type Config struct {
	Socket      string
	Version     string
	Node        string
	View        View
	Allocator   Allocator
	Plugins     Plugins
	Rules       Rules
	History     History
	Actions     ActionLog
	StateFile   io.WriterTo // writes a copy of the state file
	HistoryFile io.WriterTo // writes a copy of the history
	// Evictions, Pods and OnNode are nil without an API server. OnNode returns a resource's capacity on the Node.
	Evictions Evictions
	Pods      Pods
	OnNode    func(device.ResourceName) (n int, shown bool)
	// Claimed returns which resources are offered through Dynamic Resource Allocation; nil: none.
	Claimed func(device.ResourceName) bool
	// OverMaxDevices returns dra.maxDevices for a resource that is not offered so because it has more devices than that; otherwise 0.
	OverMaxDevices func(device.ResourceName) int
	Components     func() []device.Component
	// NotRedirected returns the running containers that were created without devmgrd and have the kubelet's plugin directory. nil: there
	// is no redirect.
	NotRedirected func() []device.PodContainer
	// Limits returns what releases of the container runtime and of Kubernetes keep devmgrd from doing. nil: not known.
	Limits func() []device.Limit
	Log    *slog.Logger
}

// A Server is AdminService. Run serves it at the socket; its methods may also be called within the process.
type Server struct {
	adminv1.UnimplementedAdminServiceServer
	cfg     Config
	started time.Time

	stopping chan struct{} // closed when streams have to end

	mu      locks.Mutex[locks.Leaf]
	trouble error // why the socket is not served
}

const (
	firstRebind = time.Second // before the next try for an unavailable socket
	lastRebind  = 30 * time.Second

	maxRequestBytes = 1 << 20
	maxHeaderBytes  = 8 << 10 // of a request; gRPC's own limit is 16 MiB
	stopLimit       = 2 * time.Second
)

// New returns a Server; Run starts it.
func New(c Config) *Server {
	if c.Socket == "" || c.View == nil || c.Allocator == nil || c.Plugins == nil || c.Rules == nil || c.StateFile == nil || c.HistoryFile == nil || c.History == nil || c.Actions == nil || c.Components == nil || c.Log == nil {
		panic("admin: Socket, View, Allocator, Plugins, Rules, History, Actions, StateFile, HistoryFile, Components and Log are required")
	}
	return &Server{cfg: c, started: time.Now(), stopping: make(chan struct{})}
}

// Check returns nil unless the socket is unavailable.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxHeaderListSize(maxHeaderBytes), grpc.WaitForHandlers(true), grpc.Creds(peercreds.New(identify)))
	adminv1.RegisterAdminServiceServer(server, s)
	l := s.bind(ctx)
	if l == nil {
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serving %s: %w", s.cfg.Socket, err)
	case <-ctx.Done():
	}
	close(s.stopping)
	os.Remove(s.cfg.Socket) // no process answers there from now on
	hard := time.AfterFunc(stopLimit, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
	<-ended
	return nil
}

// bind tries until it listens on the socket; nil: ctx has ended.
func (s *Server) bind(ctx context.Context) net.Listener {
	pause := loops.Backoff{First: firstRebind, Last: lastRebind}
	for ctx.Err() == nil {
		l, err := s.listen()
		s.mu.Lock()
		told := s.trouble != nil
		s.trouble = err
		s.mu.Unlock()
		if err == nil {
			return l
		}
		if !told {
			s.cfg.Log.Error("cannot serve admin socket; retrying", "err", err)
		}
		pause.Wait(ctx)
	}
	return nil
}

func (s *Server) listen() (net.Listener, error) {
	if _, err := shareddir.Make(filepath.Dir(s.cfg.Socket), 0o755); err != nil {
		return nil, err
	}
	l, err := socket.ListenPath(s.cfg.Socket, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w, or choose another admin.socket", err)
	}
	return l, nil
}
