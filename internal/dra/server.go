package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

const (
	maxRequestBytes         = 1 << 20
	maxHeaderBytes          = 8 << 10 // of a request; gRPC's own limit is 16 MiB
	preparing               = 16      // claims of one request at once
	streams                 = 256     // requests at once on one connection: the kubelet prepares the claims of many pods at once
	firstListen, lastListen = time.Second, 30 * time.Second
	rewriteTime             = 20 * time.Second // in which the kubelet asks to prepare the claim of a pod, several times
	registerTime            = 30 * time.Second // for the kubelet to register the driver; it takes two seconds, and longer while the node boots
)

// connections are the limits of connections. The kubelet needs two.
var connections = connlimit.Limits{Served: 64, ServedPerClient: 16, Waiting: 64, WaitingPerClient: 16}

// Allocator knows which containers have their devices.
type Allocator interface {
	Readiness(device.Container) device.Readiness
	// Updated returns a channel that is closed when a Readiness may have changed since the call.
	Updated() <-chan struct{}
}

// Files are the CDI files of claims.
type Files interface {
	// Readable returns nil if the container runtime reads the files, as far as is known, and otherwise why not. It may wait for the runtime.
	Readable(context.Context) error
	// Prepare writes the files of a claim, and returns the CDI devices of each of its devices.
	Prepare(context.Context, cdi.Claim) ([][]string, error)
	// Unprepared reports that the kubelet does not need a claim any longer.
	Unprepared(device.ClaimUID)
	// Missing reports whether the file of one of these requests is not there.
	Missing([]device.ClaimRequest) bool
}

// ServerConfig is what NewServer needs.
type ServerConfig struct {
	// RegistryDir is the kubelet's directory plugins_registry, and PluginsDir its directory plugins.
	RegistryDir, PluginsDir string
	Claims                  *Claims
	Allocator               Allocator
	Files                   Files
	// Hold is how long an answer to the kubelet waits for the devices of a claim. The kubelet's limit is 45 s.
	Hold time.Duration
	// Sysfs and Procfs are where these are mounted; empty: /sys and /proc.
	Sysfs, Procfs string
	Log           *slog.Logger
	Metrics       prometheus.Registerer
}

// A Server answers the kubelet as the DRA driver devmgrd.io.
type Server struct {
	drav1.UnimplementedDRAPluginServer
	health.UnimplementedDRAResourceHealthServer
	registration.UnimplementedRegistrationServer
	ServerConfig
	prepared     *prometheus.CounterVec
	limiter      *connlimit.Limiter
	healthAgain  time.Duration
	registerTime time.Duration
	rewriteTime  time.Duration
	metadata     metadataWriter
	waiting      atomic.Int64 // claims that are being prepared

	mu      locks.Mutex[locks.Leaf] // guards what follows
	failure error                   // why the kubelet cannot reach the driver, or has refused it; nil: it has accepted it
	overdue bool                    // registerTime is over
}

var errNotRegistered = errors.New("the kubelet has not registered the DRA driver " + Driver + " yet")

// NewServer returns a Server. Run makes it listen.
func NewServer(c ServerConfig) *Server {
	s := &Server{ServerConfig: c, limiter: connlimit.New(connections, connlimit.UnixClient), failure: errNotRegistered, healthAgain: healthAgain, registerTime: registerTime, rewriteTime: rewriteTime, metadata: newMetadataWriter(),
		prepared: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_claims_prepared_total", Help: "Answers to the kubelet about ResourceClaims, by result: ready, waited (held until the devices were assigned) or refused (the kubelet asks again).",
		}, []string{"result"})}
	c.Metrics.MustRegister(s.prepared)
	return s
}

// Check returns nil while the kubelet has registered the driver, and otherwise the reason why not. The kubelet has registerTime for that: devmgrd serves
// plugins and answers for pods meanwhile.
func (s *Server) Check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == errNotRegistered && !s.overdue {
		return nil
	}
	return s.failure
}

func (s *Server) setFailure(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// listening begins registerTime. The kubelet finds a new socket, and registers the driver again.
func (s *Server) listening() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure, s.overdue = errNotRegistered, false
}

// awaitKubelet ends registerTime, and logs that the kubelet has not registered the driver.
func (s *Server) awaitKubelet(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(s.registerTime):
	}
	s.mu.Lock()
	s.overdue = true
	waits := s.failure == errNotRegistered
	s.mu.Unlock()
	if waits {
		s.Log.Warn("kubelet has not registered the DRA driver; waiting", "driver", Driver, "socket", Sockets(s.RegistryDir, s.PluginsDir)[1])
	}
}

// Endpoint returns the path of the socket on which the kubelet calls the driver.
func (s *Server) Endpoint() string { return Sockets(s.RegistryDir, s.PluginsDir)[0] }

// Sockets returns the paths on which the driver listens in the kubelet's directories plugins_registry and plugins: first the one for calls,
// then the one by which the kubelet finds it.
func Sockets(registryDir, pluginsDir string) []string {
	return []string{filepath.Join(pluginsDir, Driver, "dra.sock"), filepath.Join(registryDir, Driver+"-reg.sock")}
}

// Run answers the kubelet until ctx ends, which is not an error. The kubelet finds the driver by a socket in its directory
// plugins_registry, which appears after the socket that it names.
func (s *Server) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { s.rewrite(ctx) })
	pause := loops.Backoff{First: firstListen, Last: lastListen}
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			break
		}
		s.setFailure(err)
		s.Log.Error("cannot serve the kubelet as a DRA driver; retrying", "err", err)
		pause.Wait(ctx)
	}
	return nil
}

// serve listens on both sockets until ctx ends, or one fails.
func (s *Server) serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	paths := Sockets(s.RegistryDir, s.PluginsDir)
	for _, one := range []struct {
		path     string
		register func(*grpc.Server)
	}{
		{paths[0], func(g *grpc.Server) {
			drav1.RegisterDRAPluginServer(g, s)
			registerHealth(g, s)
		}},
		{paths[1], func(g *grpc.Server) { registration.RegisterRegistrationServer(g, s) }},
	} {
		l, err := listen(filepath.Dir(paths[0]), one.path)
		if err != nil {
			group.Go(func() error { return err }) // it ends the other server
			break
		}
		if one.path == paths[1] {
			s.listening() // before the kubelet is answered
			group.Go(func() error { s.awaitKubelet(ctx); return nil })
		}
		g := grpc.NewServer(grpc.MaxRecvMsgSize(maxRequestBytes), grpc.MaxHeaderListSize(maxHeaderBytes), grpc.MaxConcurrentStreams(streams), grpc.WaitForHandlers(true))
		one.register(g)
		group.Go(func() error { return ended(g.Serve(s.limiter.Listener(l)), one.path) })
		group.Go(func() error {
			<-ctx.Done()
			g.Stop()
			return nil
		})
	}
	return group.Wait()
}

// listen makes the socket's directory and listens. The socket is made in another directory first: for a draft in plugins_registry the kubelet logs an
// error.
func listen(draft, path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	return socket.ListenPathFrom(draft, path, 0o600)
}

// ended returns why a server has ended before it was stopped.
func ended(err error, path string) error {
	if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serving at %s: %w", path, err)
	}
	return nil
}

// GetInfo is part of the kubelet's plugin registration.
func (s *Server) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.DRAPlugin, Name: Driver, Endpoint: s.Endpoint(), SupportedVersions: append([]string{drav1.DRAPluginService}, healthVersions...),
	}, nil
}

// NotifyRegistrationStatus is part of the kubelet's plugin registration.
func (s *Server) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		s.setFailure(nil)
		s.Log.Info("kubelet has registered the DRA driver", "driver", Driver)
	} else {
		why := device.ClipTo(status.Error, maxMistake)
		s.setFailure(fmt.Errorf("the kubelet has refused the DRA driver %s: %s", Driver, why))
		s.Log.Error("kubelet has refused the DRA driver", "driver", Driver, "err", why)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// NodePrepareResources answers when the pods of these claims have their devices, and their CDI files are there. After Hold without devices it is an error
// with the reason, which the kubelet shows in an event; it asks again after some seconds.
func (s *Server) NodePrepareResources(ctx context.Context, request *drav1.NodePrepareResourcesRequest) (*drav1.NodePrepareResourcesResponse, error) {
	hold, cancel := context.WithTimeout(ctx, s.Hold)
	defer cancel()
	all := make([]*drav1.NodePrepareResourceResponse, len(request.Claims))
	var work errgroup.Group
	work.SetLimit(preparing)
	for i, c := range request.Claims { // of one pod: each may take a read of the API server
		work.Go(func() error {
			all[i] = s.answer(ctx, hold, c)
			return nil
		})
	}
	_ = work.Wait()
	answer := &drav1.NodePrepareResourcesResponse{Claims: map[string]*drav1.NodePrepareResourceResponse{}}
	for i, c := range request.Claims {
		answer.Claims[c.Uid] = all[i]
	}
	return answer, nil
}

// answer prepares one claim.
func (s *Server) answer(ctx, hold context.Context, c *drav1.Claim) *drav1.NodePrepareResourceResponse {
	one, result := &drav1.NodePrepareResourceResponse{}, "ready"
	got, waited, err := s.prepare(ctx, hold, c)
	if waited {
		result = "waited"
	}
	var names [][]string
	if err == nil {
		names, err = s.write(ctx, c.Namespace, c.Name, got, false)
	}
	if err != nil {
		one.Error, result = err.Error(), "refused"
		s.Log.Info("claim is not prepared", "namespace", c.Namespace, "claim", c.Name, "err", err)
	}
	s.prepared.WithLabelValues(result).Inc()
	for i := range names {
		r := got.results[i]
		one.Devices = append(one.Devices, &drav1.Device{RequestNames: []string{r.base()}, PoolName: r.pool, DeviceName: r.device, CdiDeviceIds: names[i]})
	}
	return one
}

// prepare waits until the runtime is known to read CDI files and a pod has the devices of a claim, while hold lasts: the claim itself is read within the caller's time. A claim that no
// container uses, as far as devmgrd knows, is not ready: if devmgrd were wrong, a container would start without its devices.
func (s *Server) prepare(ctx, hold context.Context, c *drav1.Claim) (got claim, waited bool, err error) {
	got, err = s.Claims.read(ctx, c.Namespace, c.Name)
	switch {
	case err != nil:
		return claim{}, false, err
	case string(got.uid) != c.Uid:
		return claim{}, false, fmt.Errorf("ResourceClaim %s/%s has UID %s, not %s: it has been created again", c.Namespace, c.Name, got.uid, c.Uid)
	case len(got.results) == 0:
		return got, false, nil // it has no devices of this driver any longer
	}
	s.Claims.renew(c.Namespace, c.Name, got)
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	for {
		if err := s.Files.Readable(hold); err != nil {
			return claim{}, true, err
		}
		updated, looked := s.Allocator.Updated(), time.Now() // before anything is asked
		users, unused, changed := s.Claims.users(c.Namespace, c.Name, got)
		why := device.Wait{Reason: device.UnknownPod, Message: "no pod of this node is known for which the claim is reserved"}
		if unused != (device.Pod{}) {
			why = device.Wait{Reason: device.NoClaim, Message: fmt.Sprintf("no container of pod %s uses the devices of %s in ResourceClaim %s: name the claim in a container's resources.claims", unused, Driver, c.Name)}
		}
		for _, user := range users {
			ready := s.Allocator.Readiness(user)
			if ready.State == device.Ready {
				return got, waited, nil
			}
			why = ready.Wait
		}
		waited = true
		pause := time.After(min(lookShare*time.Since(looked)*time.Duration(s.waiting.Load()), lastLook)) // each change wakes all that wait
		select {
		case <-changed:
		case <-updated:
		case <-hold.Done():
			return claim{}, true, fmt.Errorf("%s: %s", why.Reason, why.Message)
		}
		select {
		case <-pause:
		case <-hold.Done():
		}
	}
}

// write writes the CDI files of a claim whose pods have their devices. untold: the kubelet does not get the answer.
func (s *Server) write(ctx context.Context, namespace, name string, of claim, untold bool) ([][]string, error) {
	c := cdi.Claim{UID: of.uid, Users: s.Claims.containers(namespace, name, of), Untold: untold}
	describer := newDescriber(s.Sysfs, s.Procfs)
	var described []metadataDevice
	for i, d := range s.Claims.devices(namespace, name, of) {
		one := metadataDevice{result: of.results[i]}
		c.Devices = append(c.Devices, cdi.Device{Request: one.base(), Name: one.device, Resource: d.Resource, ID: d.ID})
		if d.Resource != "" && !of.implicit { // it reads files of the host
			one.attributes = describer.once(d)
		}
		described = append(described, one)
	}
	metadata, err := s.metadata.files(namespace, name, of, described)
	if err != nil {
		return nil, err
	}
	c.Metadata = metadata
	return s.Files.Prepare(ctx, c)
}

// rewrite writes the CDI files that are missing of claims whose pods have had their devices for rewriteTime, until ctx ends: the kubelet had the claim
// prepared before devmgrd started, and does not ask again. The runtime creates no container without them.
func (s *Server) rewrite(ctx context.Context) {
	since := map[device.ClaimUID]time.Time{} // files are missing
	for {
		updated, changed, looked := s.Allocator.Updated(), s.Claims.Changed(), time.Now() // before anything is asked
		var next time.Time
		before := since
		since = map[device.ClaimUID]time.Time{}
		for _, one := range s.Claims.known() {
			if !s.Files.Missing(one.requests()) {
				continue
			}
			users, _, _ := s.Claims.users(one.namespace, one.name, one.claim)
			if !slices.ContainsFunc(users, func(user device.Container) bool { return s.Allocator.Readiness(user).State == device.Ready }) {
				continue
			}
			began, known := before[one.uid]
			if !known {
				began = time.Now()
			}
			if time.Since(began) >= s.rewriteTime {
				if _, err := s.write(ctx, one.namespace, one.name, one.claim, true); err == nil {
					continue
				}
				began = time.Now() // the error is logged
			}
			since[one.uid] = began
			next = loops.Earliest(next, began.Add(s.rewriteTime))
		}
		again, pause := loops.At(next), afterLook(looked)
		select {
		case <-ctx.Done():
			return
		case <-updated:
		case <-changed:
		case <-again:
		}
		select {
		case <-ctx.Done():
			return
		case <-pause:
		}
	}
}

// NodeUnprepareResources always succeeds: the devices are free when the allocator has proved that, whatever the kubelet
// says. An error would keep the pod from being deleted.
func (s *Server) NodeUnprepareResources(_ context.Context, request *drav1.NodeUnprepareResourcesRequest) (*drav1.NodeUnprepareResourcesResponse, error) {
	answer := &drav1.NodeUnprepareResourcesResponse{Claims: map[string]*drav1.NodeUnprepareResourceResponse{}}
	for _, c := range request.Claims {
		s.Files.Unprepared(device.ClaimUID(c.Uid))
		answer.Claims[c.Uid] = &drav1.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}
