package admin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// A Allocator knows who has which devices, and takes them out of service. But for Cordon and Uncordon, which write to the disk,
// its methods return at once.
type Allocator interface {
	Snapshot() *device.Snapshot
	// Updated returns a channel that is closed when the board, an offer or a cordon has changed since the call.
	Updated() <-chan struct{}
	Offers() map[device.ResourceName]device.Offer
	Capacity() map[device.ResourceName]int
	// DeviceCounts returns the number of devices in each device.DeviceState.
	DeviceCounts() map[device.ResourceName]map[string]int
	// Devices returns the devices of a resource, or of all; false: there is no such resource.
	Devices(device.ResourceName) (all []device.DeviceStatus, known bool)
	// PodStatus tells how a pod stands; false: there is no such pod.
	PodStatus(namespace, name string) (device.PodStatus, bool)
	// WaitingPods tells how those stand that wait.
	WaitingPods() []device.PodStatus
	// Cordon takes devices out of service, durably: all, or with an error none. A *device.UnknownDeviceError names one that
	// there is not.
	Cordon([]device.Cordon) (held []device.Cordon, err error)
	// Uncordon puts them back.
	Uncordon([]device.Cordon) (lifted []device.Cordon, err error)
	// Forget drops a resource, durably, with its cordons. A *device.InUseError says who uses it.
	Forget(device.ResourceName) (lifted []device.Cordon, err error)
}

// Rules know what device plugins have granted.
type Rules interface {
	Seen() []device.PluginGrants
}

// Plugins know where device plugins listen, and whose they are.
type Plugins interface {
	Registrations() map[device.ResourceName]device.Registration
}

// Evictions have pods leave.
type Evictions interface {
	// Evict has a pod evicted, as soon as its disruption budget lets it, unless still returns false by then. It returns at once.
	Evict(pod device.Pod, why string, still func() bool)
}

// Pods read single pods from the API server.
type Pods interface {
	// Find reads a pod of this node that the ledger does not know, and has the ledger bind it; false: there is none that has not ended.
	Find(ctx context.Context, namespace, name string) (bool, error)
	// Ended reads how a pod of this node ended; false: there is none that has.
	Ended(ctx context.Context, namespace, name string) (device.EndedPod, bool, error)
}

// A History remembers who had which devices.
type History interface {
	// Spans returns all that had not ended by then, as far as they are remembered, in the order of their beginnings.
	Spans(since time.Time) ([]device.Span, error)
}

// An ActionLog remembers what operators did.
type ActionLog interface {
	// SaveAction makes an action durable.
	SaveAction(device.Action) error
	// Actions returns the actions since then, as far as they are remembered, in the order of their times.
	Actions(since time.Time) ([]device.Action, error)
}

// A Component is a part of the daemon; Err is what is missing, nil if it is ready.
type Component struct {
	Name string
	Err  error
}

// Config is what New needs.
type Config struct {
	Socket      string
	Version     string
	Node        string
	Allocator   Allocator
	Plugins     Plugins
	Rules       Rules
	History     History
	Actions     ActionLog
	StateFile   io.WriterTo // writes a copy of the state file
	HistoryFile io.WriterTo // writes a copy of the history
	// Evictions and Pods are nil where there is no API server, and so is OnNode, which returns what our Node shows of a resource.
	Evictions  Evictions
	Pods       Pods
	OnNode     func(device.ResourceName) (n int, shown bool)
	Components func() []Component
	// NotRedirected returns the running containers that were created without devmgrd and have the kubelet's plugin directory. nil: there
	// is no redirect.
	NotRedirected func() []device.PodContainer
	Log           *slog.Logger
}

// A Server serves AdminService.
type Server struct {
	cfg     Config
	started time.Time

	stopping chan struct{} // closed when calls that go on have to end

	mu      sync.Mutex
	trouble error // why it is not served
}

const (
	firstRebind = time.Second // before the next try for a socket that cannot be had
	lastRebind  = 30 * time.Second

	maxRequestBytes = 1 << 20
	stopLimit       = 2 * time.Second
)

// New makes a Server; Run starts it.
func New(c Config) *Server {
	if c.Socket == "" || c.Allocator == nil || c.Plugins == nil || c.Rules == nil || c.StateFile == nil || c.HistoryFile == nil || c.History == nil || c.Actions == nil || c.Components == nil || c.Log == nil {
		panic("admin: Socket, Allocator, Plugins, Rules, History, Actions, StateFile, HistoryFile, Components and Log are required")
	}
	return &Server{cfg: c, started: time.Now(), stopping: make(chan struct{})}
}

// Check returns nil unless the socket cannot be had.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.trouble
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequestBytes), grpc.WaitForHandlers(true), grpc.Creds(peerCredentials{}))
	adminv1.RegisterAdminServiceServer(server, service{Server: s})
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
	os.Remove(s.cfg.Socket) // what is left is only a name that nobody answers to
	hard := time.AfterFunc(stopLimit, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
	<-ended
	return nil
}

// bind tries until it has the socket; nil: ctx has ended.
func (s *Server) bind(ctx context.Context) net.Listener {
	pause := backoff.Backoff{First: firstRebind, Last: lastRebind}
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
