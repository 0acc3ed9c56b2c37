package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/socket"
)

const (
	// kubeletTimeout bounds one call to the kubelet.
	kubeletTimeout = 2 * time.Second
	// impatience is how long an answer waits for a kubelet that has let such a call time out, until it answers again.
	impatience = 100 * time.Millisecond
	// The kubelet allows all of its clients together 100 calls a second, and 10 at once. We leave most of that to others.
	kubeletRate, kubeletBurst = 40, 4
	// maxKubeletBytes bounds its answer: some 100 000 devices.
	maxKubeletBytes = 16 << 20
)

// A kubelet is asked for what is its own.
type kubelet struct {
	conn *grpc.ClientConn
	get  v1.PodResourcesListerClient
	pace *rate.Limiter
	log  *slog.Logger
	gaps interface{ Inc() }

	list        question[*v1.ListPodResourcesResponse]
	alpha       question[*v1alpha1.ListPodResourcesResponse]
	allocatable question[*v1.AllocatableResourcesResponse]

	slow atomic.Bool // the last call has timed out
	gone atomic.Bool // it has been logged that it does not answer
}

// newKubelet makes a client of the kubelet, which is at the first of the paths where anybody listens but process self. The goroutines
// that call are work's, and end with ctx.
func newKubelet(ctx context.Context, work *sync.WaitGroup, paths []string, self int, gaps interface{ Inc() }, log *slog.Logger) (*kubelet, error) {
	conn, err := grpc.NewClient("passthrough:///kubelet",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialOther(ctx, paths, self) }),
		// A kubelet that is back has to be asked at once. Nothing is dialled while nobody asks.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: kubeletTimeout,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxKubeletBytes)),
	)
	if err != nil {
		return nil, err
	}
	lister, alpha := v1.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn)
	k := &kubelet{conn: conn, get: lister, pace: rate.NewLimiter(kubeletRate, kubeletBurst), log: log, gaps: gaps}
	rounds := rounds{ctx: ctx, work: work, pace: k.pace, slow: &k.slow}
	k.list = question[*v1.ListPodResourcesResponse]{rounds: rounds, call: func(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
		return lister.List(ctx, &v1.ListPodResourcesRequest{})
	}}
	k.alpha = question[*v1alpha1.ListPodResourcesResponse]{rounds: rounds, call: func(ctx context.Context) (*v1alpha1.ListPodResourcesResponse, error) {
		return alpha.List(ctx, &v1alpha1.ListPodResourcesRequest{})
	}}
	k.allocatable = question[*v1.AllocatableResourcesResponse]{rounds: rounds, call: func(ctx context.Context) (*v1.AllocatableResourcesResponse, error) {
		return lister.GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	}}
	return k, nil
}

// dialOther dials the first path where another process than self listens: with the kubelet away, its path may be ours.
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
			err = cmp.Or(err, fmt.Errorf("%s is ours", path))
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// ask returns the kubelet's answer, or the zero value if there is none: then devices have to do. Without a kubelet nothing is
// asked.
func ask[T any](ctx context.Context, k *kubelet, q func(*kubelet) *question[T]) (answer T) {
	if k == nil {
		return answer
	}
	patience := 2 * kubeletTimeout // the call that is in flight, and our own
	if k.slow.Load() {
		patience = impatience
	}
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := q(k).ask(short)
	switch {
	case err == nil:
		k.answers()
		return answer
	case ctx.Err() != nil:
		return answer // it is the caller who has no time
	}
	k.gaps.Inc()
	if !k.gone.Swap(true) {
		k.log.Warn("kubelet's PodResources not answering; serving devices only", "err", err)
	}
	return answer
}

// answers logs the first answer of a kubelet that did not answer before.
func (k *kubelet) answers() {
	if k.gone.Swap(false) {
		k.log.Info("kubelet's PodResources answering again")
	}
}

// pod returns the kubelet's entry of one pod, or nil. The kubelet is asked for that pod alone, so its metrics count Get as they do
// without devmgrd. It is asked for its list, which concurrent questions share, where calls come too fast for one each, where it
// does not answer Get (an older one without its feature gate), and where it answers with an error.
func (k *kubelet) pod(ctx context.Context, pod podKey) *v1.PodResources {
	if k == nil {
		return nil
	}
	if !k.slow.Load() && k.pace.Allow() {
		short, cancel := context.WithTimeout(ctx, kubeletTimeout)
		answer, err := k.get.Get(short, &v1.GetPodResourcesRequest{PodNamespace: pod.namespace, PodName: pod.name})
		if ctx.Err() == nil && short.Err() != nil {
			k.slow.Store(true)
		}
		cancel()
		if err == nil {
			k.answers()
			return answer.PodResources
		}
	}
	all := ask(ctx, k, func(k *kubelet) *question[*v1.ListPodResourcesResponse] { return &k.list })
	for _, p := range all.GetPodResources() {
		if p.Name == pod.name && p.Namespace == pod.namespace {
			return p
		}
	}
	return nil
}

// rounds are what all questions share.
type rounds struct {
	ctx  context.Context
	work *sync.WaitGroup
	pace *rate.Limiter
	slow *atomic.Bool
}

// A question is asked in rounds: whoever comes while a call is in flight joins the next one, and all who have joined share its
// answer. So an answer is never older than its question, and calls do not grow with those who ask.
type question[T any] struct {
	rounds
	call func(context.Context) (T, error)

	mu     sync.Mutex
	next   *round[T] // nil: nobody has asked since the last call began
	asking bool      // somebody is calling, or about to
}

type round[T any] struct {
	done   chan struct{}
	answer T
	err    error
}

func (q *question[T]) ask(ctx context.Context) (answer T, err error) {
	q.mu.Lock()
	if q.next == nil {
		q.next = &round[T]{done: make(chan struct{})}
	}
	r := q.next
	if !q.asking {
		q.asking = true
		q.work.Go(q.run)
	}
	q.mu.Unlock()
	select {
	case <-r.done:
		return r.answer, r.err
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// run calls for as long as somebody asks.
func (q *question[T]) run() {
	for q.more() {
		err := q.pace.Wait(q.ctx)
		q.mu.Lock()
		r := q.next
		q.next = nil
		q.mu.Unlock()
		if r.err = err; err == nil {
			ctx, cancel := context.WithTimeout(q.ctx, kubeletTimeout)
			r.answer, r.err = q.call(ctx)
			// What counts is the call's time: those who ask may have come late, or have no patience since it was slow before.
			q.slow.Store(r.err != nil && ctx.Err() != nil)
			cancel()
		}
		close(r.done)
	}
}

func (q *question[T]) more() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asking = q.next != nil
	return q.asking
}
