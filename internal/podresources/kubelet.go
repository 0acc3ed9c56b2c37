package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/podresources/internal/takeover"
	"github.com/devmgrd/devmgrd/internal/socket"
)

const (
	// kubeletTimeout bounds one call to the kubelet.
	kubeletTimeout = 2 * time.Second
	// slowTimeout is how long a request waits for a kubelet whose last call has timed out.
	slowTimeout = 100 * time.Millisecond
	// The kubelet allows 100 calls a second and 10 at once from all of its clients together. Other clients keep most of that.
	kubeletRate, kubeletBurst = 40, 4
	// maxKubeletBytes bounds the kubelet's response: some 100 000 devices.
	maxKubeletBytes = 16 << 20
)

// A kubelet is a client of the kubelet's PodResources.
type kubelet struct {
	conn *grpc.ClientConn
	get  v1.PodResourcesListerClient
	rate *rate.Limiter
	log  *slog.Logger
	gaps interface{ Inc() }

	list        sharedCall[*v1.ListPodResourcesResponse]
	alpha       sharedCall[*v1alpha1.ListPodResourcesResponse]
	allocatable sharedCall[*v1.AllocatableResourcesResponse]

	slow   atomic.Bool // the last call timed out
	failed atomic.Bool // the failure has been logged
}

// connect returns a connection to the process that listens at the first of the paths where a process other than self does.
func connect(paths []string, self int) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialOther(ctx, paths, self) }),
		// A kubelet that is back is used at once. Without requests nothing is dialled.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: kubeletTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxKubeletBytes)),
	)
}

// paths returns where the kubelet may listen: it does at its own path until devmgrd takes that over.
func paths(socket string, taken bool) []string {
	if taken {
		return []string{takeover.Aside(socket), socket}
	}
	return []string{socket}
}

// AssignedByKubelet asks the kubelet at socket, which devmgrd may have taken over, for the devices that pods have by its own device manager, by namespace/name of each
// pod that it knows, and by container name. With this question the kubelet also forgets the devices of pods that have ended (UpdateAllocatedDevices).
func AssignedByKubelet(ctx context.Context, socket string, taken bool) (map[string]map[string]device.Choice, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeletTimeout)
	defer cancel()
	conn, err := connect(paths(socket, taken), os.Getpid())
	if err != nil {
		return nil, fmt.Errorf("PodResources of the kubelet: %w", err)
	}
	defer conn.Close()
	answer, err := v1.NewPodResourcesListerClient(conn).List(ctx, &v1.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("PodResources of the kubelet at %s: %w", socket, err)
	}
	all := map[string]map[string]device.Choice{}
	for _, p := range answer.GetPodResources() {
		pod := device.Pod{Namespace: p.GetNamespace(), Name: p.GetName()}.String()
		containers := lists.Inner(all, pod)
		for _, c := range p.GetContainers() {
			for _, d := range c.GetDevices() { // one for each NUMA node, or for each device
				choice, r := lists.Inner(containers, c.GetName()), device.ResourceName(d.GetResourceName())
				for _, id := range d.GetDeviceIds() {
					if at, has := slices.BinarySearch(choice[r], device.ID(id)); !has { // in one order: the kubelet's is that of a map
						choice[r] = slices.Insert(choice[r], at, device.ID(id))
					}
				}
			}
		}
	}
	return all, nil
}

// newKubelet returns a client of the kubelet. Its goroutines belong to work and end with ctx.
func newKubelet(ctx context.Context, work *sync.WaitGroup, paths []string, self int, gaps interface{ Inc() }, log *slog.Logger) (*kubelet, error) {
	conn, err := connect(paths, self)
	if err != nil {
		return nil, err
	}
	lister, alpha := v1.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn)
	k := &kubelet{conn: conn, get: lister, rate: rate.NewLimiter(kubeletRate, kubeletBurst), log: log, gaps: gaps}
	limits := callLimits{ctx: ctx, work: work, rate: k.rate, slow: &k.slow}
	k.list = sharedCall[*v1.ListPodResourcesResponse]{callLimits: limits, call: func(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
		return lister.List(ctx, &v1.ListPodResourcesRequest{})
	}}
	k.alpha = sharedCall[*v1alpha1.ListPodResourcesResponse]{callLimits: limits, call: func(ctx context.Context) (*v1alpha1.ListPodResourcesResponse, error) {
		return alpha.List(ctx, &v1alpha1.ListPodResourcesRequest{})
	}}
	k.allocatable = sharedCall[*v1.AllocatableResourcesResponse]{callLimits: limits, call: func(ctx context.Context) (*v1.AllocatableResourcesResponse, error) {
		return lister.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	}}
	return k, nil
}

// dialOther dials the first path where a process other than self listens. While the kubelet is down, this process may serve its
// path.
func dialOther(ctx context.Context, paths []string, self int) (net.Conn, error) {
	var errs []error
	for _, path := range paths {
		conn, err := socket.Dial(ctx, path)
		if err == nil {
			var pid int32
			if pid, err = socket.Peer(conn); err == nil && int(pid) != self {
				return conn, nil
			}
			conn.Close()
			err = cmp.Or(err, fmt.Errorf("%s is served by this process", path))
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ask returns the kubelet's response, or the zero value if it does not answer, or there is none.
func ask[T any](ctx context.Context, k *kubelet, call func(*kubelet) *sharedCall[T]) (response T) {
	if k == nil {
		return response
	}
	timeout := 2 * kubeletTimeout // the call in progress, and the next one
	if k.slow.Load() {
		timeout = slowTimeout
	}
	short, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	response, err := call(k).do(short)
	switch {
	case err == nil:
		k.answered()
		return response
	case ctx.Err() != nil:
		return response // the caller's time is over, not the kubelet's
	}
	k.gaps.Inc()
	if !k.failed.Swap(true) {
		k.log.Warn("kubelet's PodResources not answering; serving devices only", "err", err)
	}
	return response
}

// answered logs the first response after a failure.
func (k *kubelet) answered() {
	if k.failed.Swap(false) {
		k.log.Info("kubelet's PodResources answering again")
	}
}

// pod returns the kubelet's response about one pod, or nil. It calls the kubelet's Get, so that the kubelet's metrics count it as they do
// without devmgrd. It uses the kubelet's List, which concurrent requests share, when requests come too fast for one call each, and
// when Get fails, as with an older kubelet without the feature gate.
func (k *kubelet) pod(ctx context.Context, pod podName) *v1.GetPodResourcesResponse {
	if k == nil {
		return nil
	}
	if !k.slow.Load() && k.rate.Allow() {
		short, cancel := context.WithTimeout(ctx, kubeletTimeout)
		response, err := k.get.Get(short, &v1.GetPodResourcesRequest{PodNamespace: pod.namespace, PodName: pod.name})
		if ctx.Err() == nil && short.Err() != nil {
			k.slow.Store(true)
		}
		cancel()
		if err == nil {
			k.answered()
			return response
		}
	}
	all := ask(ctx, k, func(k *kubelet) *sharedCall[*v1.ListPodResourcesResponse] { return &k.list })
	for _, p := range all.GetPodResources() {
		if p.Name == pod.name && p.Namespace == pod.namespace {
			return &v1.GetPodResourcesResponse{PodResources: p}
		}
	}
	return nil
}

// callLimits are shared by all calls to the kubelet.
type callLimits struct {
	ctx  context.Context
	work *sync.WaitGroup
	rate *rate.Limiter
	slow *atomic.Bool
}

// A sharedCall is one method of the kubelet, called for several requests at a time: a request that comes during a call shares the
// next one. So a response is never older than its request, and the number of calls does not grow with that of requests.
type sharedCall[T any] struct {
	callLimits
	call func(context.Context) (T, error)

	mu      locks.Mutex[locks.Leaf]
	next    *response[T] // nil: no request has come since the last call began
	running bool
}

type response[T any] struct {
	done  chan struct{} // closed when value and err are set
	value T
	err   error
}

func (c *sharedCall[T]) do(ctx context.Context) (value T, err error) {
	c.mu.Lock()
	if c.next == nil {
		c.next = &response[T]{done: make(chan struct{})}
	}
	r := c.next
	if !c.running {
		c.running = true
		c.work.Go(c.run)
	}
	c.mu.Unlock()
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		return value, context.Cause(ctx)
	}
}

// run calls as long as requests wait.
func (c *sharedCall[T]) run() {
	for c.more() {
		err := c.rate.Wait(c.ctx)
		c.mu.Lock()
		r := c.next
		c.next = nil
		c.mu.Unlock()
		r.err = err
		if err == nil {
			ctx, cancel := context.WithTimeout(c.ctx, kubeletTimeout)
			r.value, r.err = c.call(ctx)
			// The call's own time counts: requests may have come late, or have a short timeout because the kubelet was slow before.
			c.slow.Store(r.err != nil && ctx.Err() != nil)
			cancel()
		}
		close(r.done)
	}
}

// more reports whether a request waits, and ends run if none does.
func (c *sharedCall[T]) more() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = c.next != nil
	return c.running
}
