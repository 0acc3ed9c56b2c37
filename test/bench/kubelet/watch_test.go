package kubelet

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
)

// churning is how many pods come and go: a pod gets its device, has ended, and its device is free again. Those are three
// changes to a watcher, so they are a thousand.
const churning = 333 // and the last one

// receipts is what a watcher has received.
type receipts struct {
	events []string
	lags   []time.Duration
	err    error
}

// BenchmarkWatch measures the time from a change to its receipt, by the clock that all processes of a machine share, while
// pods come and go one after the other, or all at once. Every watcher has to receive each change once, and in order.
func BenchmarkWatch(b *testing.B) {
	server := startProcess(b)
	server.do(b, "ServeDevmgrd", Size{Pods: 110, Spare: churning + 1}, nil)
	socket := filepath.Join(b.TempDir(), "s")
	server.do(b, "Window", Window{Socket: socket}, nil)
	for _, watchers := range []int{1, 16} {
		for _, churn := range []struct {
			name string
			Churn
		}{{"one-by-one", Churn{churning, false}}, {"at-once", Churn{churning, true}}} {
			b.Run(fmt.Sprintf("watchers=%d/%s", watchers, churn.name), func(b *testing.B) {
				conns := make([]*grpc.ClientConn, watchers)
				for i := range conns {
					conns[i] = dial(b, socket)
				}
				var lags []time.Duration
				changes := 0
				for b.Loop() {
					all := make([]*receipts, watchers)
					ended := make(chan struct{}, watchers)
					for i := range all {
						all[i] = &receipts{}
						stream, end := watch(b, conns[i])
						go func() {
							all[i].receive(stream)
							end()
							ended <- struct{}{}
						}()
					}
					var truth []string
					server.do(b, "Churn", churn.Churn, &truth)
					for range all {
						<-ended
					}
					for _, r := range all {
						if r.err != nil || !slices.Equal(r.events, truth) {
							b.Fatalf("a watcher has received %d changes of %d, or not in order: %v", len(r.events), len(truth), r.err)
						}
						lags = append(lags, r.lags...)
					}
					changes += len(truth)
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(changes), "changes")
				b.ReportMetric(microseconds(median(lags)), "µs-lag-median")
				b.ReportMetric(microseconds(quantile(lags, 0.99)), "µs-lag-p99")
				b.ReportMetric(microseconds(quantile(lags, 1)), "µs-lag-max")
			})
		}
	}
}

// watch begins to watch, and returns after the snapshot.
func watch(b *testing.B, conn *grpc.ClientConn) (stream grpc.ServerStreamingClient[podresourcesv1.WatchResponse], end func()) {
	b.Helper()
	ctx, end := context.WithTimeout(b.Context(), time.Minute)
	stream, err := podresourcesv1.NewPodResourcesServiceClient(conn).Watch(ctx, &podresourcesv1.WatchRequest{})
	if err != nil {
		b.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			b.Fatal(err)
		}
		if r.GetSnapshot().GetLast() {
			return stream, end
		}
	}
}

// receive receives changes until the last pod is gone.
func (r *receipts) receive(changes grpc.ServerStreamingClient[podresourcesv1.WatchResponse]) {
	last := event("released", lastPod, true)
	for len(r.events) == 0 || r.events[len(r.events)-1] != last {
		response, err := changes.Recv()
		if err != nil {
			r.err = err
			return
		}
		c := response.GetChange()
		r.lags = append(r.lags, time.Since(c.GetTime().AsTime()))
		if p := c.GetAssigned(); p != nil {
			r.events = append(r.events, event("assigned", p.Uid, p.Ended))
		} else {
			r.events = append(r.events, event("released", c.GetReleased().GetUid(), c.GetReleased().GetEnded()))
		}
	}
}
