package podresources

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

type tally struct{ n int }

func (t *tally) Inc() { t.n++ }

// asks asks a kubelet whose List takes as long as takes says, and returns the number of pods in its answer.
func asks(t *testing.T, takes func() time.Duration) (list func() int) {
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	t.Cleanup(work.Wait)
	t.Cleanup(cancel)
	k := &kubelet{log: slog.New(slog.DiscardHandler), gaps: &tally{}}
	k.list = sharedCall[*v1.ListPodResourcesResponse]{
		callLimits: callLimits{ctx: ctx, work: &work, rate: rate.NewLimiter(kubeletRate, kubeletBurst), slow: &k.slow},
		call: func(ctx context.Context) (*v1.ListPodResourcesResponse, error) {
			select {
			case <-time.After(takes()):
				return &v1.ListPodResourcesResponse{PodResources: []*v1.PodResources{{Name: "p"}}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	}
	return func() int {
		return len(ask(t.Context(), k, func(k *kubelet) *sharedCall[*v1.ListPodResourcesResponse] { return &k.list }).GetPodResources())
	}
}

// A kubelet that has stalled once, and takes a little longer than slowTimeout from then on, is believed again.
func TestASlowKubeletIsBelievedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int64
		takes.Store(int64(3 * time.Second))
		list := asks(t, func() time.Duration { return time.Duration(takes.Load()) })
		if n := list(); n != 0 {
			t.Fatal("the stall has been answered")
		}
		time.Sleep(5 * time.Second)
		takes.Store(int64(slowTimeout + 50*time.Millisecond)) // it is well again, on a busy node
		good := 0
		for range 100 {
			good += list()
			time.Sleep(10 * time.Second)
		}
		if good < 99 {
			t.Errorf("%d of 100 questions have its answer", good)
		}
	})
}

// A kubelet that takes 1.2 s also answers requests that come during its answer to another.
func TestWhoJoinsLateHasAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		list := asks(t, func() time.Duration { return 1200 * time.Millisecond })
		var got [2]int
		var both sync.WaitGroup
		for i := range got {
			both.Go(func() {
				time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				got[i] = list()
			})
		}
		both.Wait()
		if got != [2]int{1, 1} {
			t.Errorf("%v", got)
		}
	})
}

// stuck shows one active pod without its devices.
type stuck struct {
	Allocator
	asked atomic.Int64
}

func (s *stuck) Snapshot() *device.Snapshot {
	s.asked.Add(1)
	p := &device.PodAllocation{Pod: device.Pod{UID: "u", Name: "p", Namespace: "ns"}, Active: true, Incomplete: true}
	return &device.Snapshot{Pods: []device.PodStatus{{PodAllocation: p, State: device.Waiting}}}
}
func (s *stuck) Updated() <-chan struct{} { return make(chan struct{}) }

// Get ends with its time.
func TestGet_PodStaysIncomplete_EndsInTime(t *testing.T) {
	t.Parallel()
	s := &stuck{}
	l := lister{Server: &Server{cfg: Config{Allocator: s}}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan struct{})
	go func() { l.complete(ctx, podName{"ns", "p"}); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatalf("Get goes on after its time is up, and has asked %d times", s.asked.Load())
	}
}
