//go:build e2e

package e2e

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// bareLimit is how long a reader of the kubelet's path may see the kubelet instead of devmgrd.
const bareLimit = time.Second

// An onlooker asks the kubelet's socket every 50 ms which devices pods have, and remembers what was not right.
type onlooker struct {
	name    string
	want    map[string][]string // as holdings returns it
	answers int
	errors  map[string]int
	wrong   []string
	bare    time.Time     // when the first answer came of those that lack devices; zero: the latest does not
	windows int           // how often they have
	longest time.Duration // from the first answer that lacked devices to the last question with such an answer: a slow answer is no gap
}

// look asks until the context ends, over one connection or over a new one each time.
func (o *onlooker) look(ctx context.Context, reconnect bool) error {
	dial := func() (*grpc.ClientConn, error) {
		return grpc.NewClient("unix://"+kubeletsResources, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	conn, err := dial()
	if err != nil {
		return err
	}
	defer func() { conn.Close() }()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if reconnect {
			conn.Close()
			if conn, err = dial(); err != nil {
				return err
			}
		}
		o.ask(ctx, podresources.NewPodResourcesListerClient(conn))
	}
}

// seen notes the answer to a question of that time, with all devices or without some.
func (o *onlooker) seen(complete bool, asked time.Time) {
	switch {
	case complete:
		o.bare = time.Time{}
	case o.bare.IsZero():
		o.bare = time.Now()
		o.windows++
	default:
		o.longest = max(o.longest, asked.Sub(o.bare))
	}
}

// devmgrd takes the kubelet's PodResources socket, and takes it again whenever a kubelet starts: who reads it sees pods'
// devices all the time, and the kubelet's CPUs. E2E_RESTARTS=20 does it 20 times. A clean stop restores the socket.
func TestPodResources_Takeover_ReadersSeeNoGap(t *testing.T) {
	r := startWith(t, cluster.Options{KubeletConfig: staticCPUs}, "--set", takeover)
	r.plugin(gpu, 3)
	want := map[string][]string{}
	for _, name := range []string{"a", "b"} {
		want[name] = has(gpu, r.stays(name, 1))
	}
	r.run("plain", "", 0)
	want["plain"] = []string{}
	tell := r.teller(kubeletsResources)
	taken := func() bool {
		told, err := tell.holdings(r.ctx)
		return err == nil && slices.Equal(told["a"], want["a"])
	}
	kubeletsToo := func() bool {
		answer, err := tell.GetAllocatableResources(r.ctx, &podresources.AllocatableResourcesRequest{})
		return err == nil && len(answer.Devices) == 3 && len(answer.CpuIds) > 0
	}
	r.untilTold("devmgrd serves the kubelet's path", taken)
	r.untilTold("with what the kubelet knows", kubeletsToo)

	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	var work sync.WaitGroup
	long := &onlooker{name: "one connection", want: want, errors: map[string]int{}}
	fresh := &onlooker{name: "a connection for each question", want: want, errors: map[string]int{}}
	for _, o := range []*onlooker{long, fresh} {
		work.Go(func() {
			if err := o.look(ctx, o == fresh); err != nil {
				t.Error(err)
			}
		})
	}
	n := times(t, "E2E_RESTARTS", 5)
	for range n {
		r.must(r.Kubelet.Kill())
		r.must(r.Kubelet.Start(r.ctx))
		r.must(r.WaitNodeReady(r.ctx))
		r.until("the kubelet has taken up all pods", func() bool {
			_, err := r.PodLogs(r.ctx, "default", "b", "main")
			return err == nil
		})
		r.untilTold("devmgrd has what the new kubelet knows", kubeletsToo)
	}
	cancel()
	work.Wait()
	for _, o := range []*onlooker{long, fresh} {
		t.Logf("%d restarts, %s: %d answers, without devices %d times, for %s at most; errors: %v",
			n, o.name, o.answers, o.windows, o.longest.Round(time.Millisecond), o.errors)
		if o.answers == 0 {
			t.Errorf("%s: there was no answer at all", o.name)
		}
		if o.longest > bareLimit {
			t.Errorf("%s: answers lacked pods' devices for %s, want at most %s", o.name, o.longest, bareLimit)
		}
		if len(o.wrong) > 0 {
			t.Errorf("%s: %d wrong answers, the first: %s", o.name, len(o.wrong), o.wrong[0])
		}
	}

	// Killed, it leaves its socket there, and does not take that for the kubelet's when it comes back.
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.untilTold("devmgrd serves the kubelet's path again", taken)
	r.untilTold("with what the kubelet knows", kubeletsToo)

	r.must(r.Devmgrd.Stop(stopLimit))
	r.unknownToTheKubelet() // answers at its own path, with CPUs and without devices
}
