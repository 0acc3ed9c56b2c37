package kubelet

import (
	"context"
	"fmt"
	"net/rpc"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"
)

const (
	// crowd is how many clients ask at one moment. Each is a process.
	crowd = 64
	// patience is how long a client waits for a server that may be gone.
	patience = 10 * time.Second
)

// Connect has a client connect, so that it need not when it asks.
func (p *Process) Connect(socket string, _ *none) error {
	conn := dial(p.t, socket)
	p.conns[socket] = conn
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		conn.WaitForStateChange(p.t.Context(), state)
	}
	return nil
}

// Ask says whom to ask, and at which moment.
type Ask struct {
	Socket string
	At     time.Time
}

// Asked is how long it took, and how it ended.
type Asked struct {
	Took time.Duration
	Code codes.Code
}

// Ask asks.
func (p *Process) Ask(a Ask, asked *Asked) error {
	time.Sleep(time.Until(a.At))
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var answer []byte
	start := time.Now()
	err := list(ctx, p.conns[a.Socket], &answer)
	*asked = Asked{time.Since(start), status.Code(err)}
	return nil
}

// crowd measures how long each of many clients waits that ask at one moment, and counts those that are refused: by devmgrd,
// alone and with a kubelet to ask, by a kubelet without its limit, which is the one to compare with, and by one as it is.
func (s *servers) crowd(b *testing.B) {
	sockets := []string{devmgrdAlone, devmgrdPlain, kubeletDevices, kubeletLimited}
	clients := make([]*process, crowd)
	for i := range clients {
		clients[i] = startProcess(b)
	}
	var connecting sync.WaitGroup
	failed := make(chan error, crowd*len(sockets))
	for _, c := range clients {
		connecting.Go(func() {
			for _, socket := range sockets {
				failed <- c.Call("Process.Connect", s.at(socket), nil)
			}
		})
	}
	connecting.Wait()
	for range crowd * len(sockets) {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
	took, refused, waves := map[string][]time.Duration{}, map[string]int{}, 0
	pace := time.NewTicker(time.Second / 4) // the kubelet's limit lets ten through then
	defer pace.Stop()
	for b.Loop() {
		waves++
		for _, socket := range sockets {
			<-pace.C
			at := time.Now().Add(50 * time.Millisecond)
			calls := make([]*rpc.Call, crowd)
			for i, c := range clients {
				calls[i] = c.Go("Process.Ask", Ask{s.at(socket), at}, &Asked{}, nil)
			}
			for _, call := range calls {
				<-call.Done
				if call.Error != nil {
					b.Fatal(call.Error)
				}
				switch asked := call.Reply.(*Asked); asked.Code {
				case codes.OK:
					took[socket] = append(took[socket], asked.Took)
				case codes.ResourceExhausted:
					refused[socket]++
				default:
					b.Fatalf("%s answers with %s", socket, asked.Code)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, socket := range sockets {
		b.ReportMetric(float64(refused[socket])/float64(waves), fmt.Sprintf("refused-of-%d-%s", crowd, socket))
		if socket != kubeletLimited {
			b.ReportMetric(microseconds(median(took[socket]))/1000, "ms-median-"+socket)
			b.ReportMetric(microseconds(quantile(took[socket], 1))/1000, "ms-max-"+socket)
		}
	}
	b.ReportMetric(float64(median(took[devmgrdAlone]))/float64(median(took[kubeletDevices])), "median:devmgrd/kubelet")
	b.ReportMetric(float64(quantile(took[devmgrdAlone], 1))/float64(quantile(took[kubeletDevices], 1)), "max:devmgrd/kubelet")
}
