package podresources

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/podresources/internal/takeover"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// An Allocator shows pods and resources. Its methods return at once.
type Allocator interface {
	Snapshot() *device.Snapshot
	Resources() device.Resources
	// ChangesSince returns the changes after a revision in order, at most most of them; false: not all of them are known.
	ChangesSince(revision uint64, most int) (changes []device.Change, known bool)
	// Updated returns a channel that is closed when the Snapshot or Resources have changed since the call.
	Updated() <-chan struct{}
}

// Pods read single pods from the API server.
type Pods interface {
	// Find reads a pod of this node and binds it to the allocator; false: there is no such pod.
	Find(ctx context.Context, namespace, name string) (bool, error)
}

// Config is what New needs.
type Config struct {
	Socket        string // where to serve
	KubeletSocket string // where the kubelet serves; empty: there is none
	Takeover      bool   // serve there, too, and put the kubelet's socket aside
	Allocator     Allocator
	Pods          Pods // nil: there is no API server
	Log           *slog.Logger
	Metrics       prometheus.Registerer
}

// A Server serves PodResources. No allocation depends on it: its failures are logged and retried.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	kubelet *kubelet // nil: no kubelet
	entries entryCache[*v1.PodResources]
	alpha   entryCache[*v1alpha1.PodResources]
	epoch   string // of this process, in whose revisions clients resume; those of other processes are unknown

	clients   *clients
	readLimit time.Duration // tests change it
	self      int           // this process's ID; tests change it

	limiter  *connlimit.Limiter
	stopping chan struct{} // closed when watches must end
	work     sync.WaitGroup

	mu      locks.Mutex[locks.Leaf]
	trouble map[string]error // why a path is not served
}

const (
	firstRebind = time.Second // before the next try for an unavailable socket
	lastRebind  = 30 * time.Second

	// What a request may have is far more than any needs: a client may have thousands in line.
	maxRequestBytes = 4 << 10
	maxHeaderBytes  = 8 << 10 // gRPC's own limit is 16 MiB
	stopLimit       = 2 * time.Second
)

// New returns a Server; Run starts it.
func New(c Config) *Server {
	if c.Socket == "" || c.Allocator == nil || c.Log == nil || c.Metrics == nil {
		panic("podresources: Socket, Allocator, Log and Metrics are required")
	}
	return &Server{
		cfg:     c,
		log:     c.Log,
		metrics: newMetrics(c.Metrics),
		entries: entryCache[*v1.PodResources]{encode: entry},
		alpha:   entryCache[*v1alpha1.PodResources]{encode: alphaEntry},
		epoch:   rand.Text()[:8],

		clients:   newClients(c.Log),
		readLimit: readLimit,
		self:      os.Getpid(),
		limiter:   connlimit.New(connections, connlimit.UnixClient),
		stopping:  make(chan struct{}),
		trouble:   map[string]error{},
	}
}

// Check returns nil while all sockets are served.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, path := range slices.Sorted(maps.Keys(s.trouble)) {
		if err := s.trouble[path]; err != nil {
			return fmt.Errorf("%s is not served: %w", path, err)
		}
	}
	return nil
}

// setTrouble records whether a path is served, and reports whether that has changed.
func (s *Server) setTrouble(path string, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.trouble[path]
	s.trouble[path] = err
	return !known || (before == nil) != (err == nil)
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer s.work.Wait()
	defer cancel()
	server := grpc.NewServer(
		grpc.Creds(peercreds.New(s.clients.identify)),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(connectionStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: connectionIdle}),
		grpc.UnaryInterceptor(s.limit),
		grpc.StreamInterceptor(s.limitStream),
		grpc.WaitForHandlers(true),
	)
	v1.RegisterPodResourcesListerServer(server, lister{Server: s})
	v1alpha1.RegisterPodResourcesListerServer(server, alphaLister{Server: s})
	proposal.RegisterPodResourcesServer(server, alphaLister{Server: s})
	podresourcesv1.RegisterPodResourcesServiceServer(server, watcher{Server: s})

	var sockets sync.WaitGroup
	if s.cfg.Takeover {
		t := takeover.New(s.cfg.KubeletSocket, s.log)
		sockets.Go(func() {
			s.serve(ctx, server, s.cfg.KubeletSocket, t.Listen, func(ctx context.Context) {
				if err := t.Run(ctx); err != nil {
					s.log.Warn("cannot restore kubelet's PodResources socket", "err", err)
				}
			})
		})
	}
	if s.cfg.KubeletSocket != "" {
		var err error
		s.kubelet, err = newKubelet(ctx, &s.work, paths(s.cfg.KubeletSocket, s.cfg.Takeover), s.self, s.metrics.gaps, s.log)
		if err != nil {
			return fmt.Errorf("PodResources: %w", err)
		}
		defer s.kubelet.conn.Close()
	}
	sockets.Go(func() {
		s.serve(ctx, server, s.cfg.Socket, s.listen, func(ctx context.Context) {
			<-ctx.Done()
			s.unlink() // no process listens there now
		})
	})
	<-ctx.Done()
	sockets.Wait() // from now on clients dial the kubelet again, or fail
	close(s.stopping)
	hard := time.AfterFunc(stopLimit, server.Stop)
	defer hard.Stop()
	server.GracefulStop()
	return nil
}

// listen binds devmgrd's own socket.
func (s *Server) listen() (net.Listener, error) {
	if err := shareddir.MakeShared(filepath.Dir(s.cfg.Socket), 0o750); err != nil { // the mode of the kubelet's directory
		return nil, err
	}
	d, name, err := shareddir.Split(s.cfg.Socket)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	stray, err := socket.Vacant(d, name)
	if err != nil {
		return nil, fmt.Errorf("%w, or choose another podResources.socket", err)
	}
	if stray != nil {
		s.log.Warn("PodResources socket's name taken; replacing file", "path", s.cfg.Socket, "type", shareddir.TypeName(stray.Mode()))
	}
	l, _, err := socket.Listen(d, name, 0o660)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// unlink removes devmgrd's own socket.
func (s *Server) unlink() {
	if d, name, err := shareddir.Split(s.cfg.Socket); err == nil {
		_ = d.Unlink(name)
		d.Close()
	}
}

// serve binds a path with listen, retrying until it succeeds, serves it, and calls keep, which returns when ctx has ended.
func (s *Server) serve(ctx context.Context, server *grpc.Server, path string, listen func() (net.Listener, error), keep func(context.Context)) {
	pause := loops.Backoff{First: firstRebind, Last: lastRebind}
	for ctx.Err() == nil {
		l, err := listen()
		if s.setTrouble(path, err) && err != nil {
			s.log.Error("cannot serve PodResources; retrying", "at", path, "err", err)
		}
		if err != nil {
			pause.Wait(ctx)
			continue
		}
		s.log.Info("serving PodResources", "at", path)
		s.work.Go(func() { // it ends with the server
			if err := server.Serve(s.limiter.Listener(l)); err != nil && ctx.Err() == nil {
				s.setTrouble(path, err)
				s.log.Error("PodResources server failed", "at", path, "err", err)
			}
		})
		keep(ctx)
		return
	}
}

// alphaLister serves v1alpha1 and the endpoint's first proposal.
type alphaLister struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns all pods of the kubelet's list, with devmgrd's devices.
func (l alphaLister) List(ctx context.Context, _ *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	l.waitForAllocations(ctx)
	kubelets := ask(ctx, l.kubelet, func(k *kubelet) *sharedCall[*v1alpha1.ListPodResourcesResponse] { return &k.alpha })
	if err := l.turn(ctx); err != nil {
		return nil, err
	}
	snapshot := l.cfg.Allocator.Snapshot()
	m := managed(snapshot, l.cfg.Allocator.Resources())
	all := &v1alpha1.ListPodResourcesResponse{PodResources: merge(activeEntries(&l.alpha, snapshot), kubelets.GetPodResources(), m.alphaPod)}
	addUnknown(all, kubelets)
	return all, nil
}

// ListDevices returns all devices that plugins list.
func (l alphaLister) ListDevices(ctx context.Context, _ *proposal.ListDevicesRequest) (*proposal.ListDevicesResponse, error) {
	if err := l.turn(ctx); err != nil {
		return nil, err
	}
	return &proposal.ListDevicesResponse{Devices: listed(l.cfg.Allocator.Resources())}, nil
}
