package podresources_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// offerMany offers so many devices that an answer with all of them has at least 2 MiB.
func (r *harness) offerMany() {
	var all []device.Device
	for i := range 2500 {
		all = append(all, device.Device{ID: device.ID(fmt.Sprintf("%s-%05d", strings.Repeat("x", 850), i)), Healthy: true, NUMA: []int{i % 2}})
	}
	r.Plugins.Offer(gpu, device.Serving, all...)
}

// deaf is a connection that is not read between two moments.
type deaf struct {
	net.Conn
	from, until chan struct{} // closed
}

func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.from:
		<-d.until
	default:
	}
	return d.Conn.Read(p)
}

// dialDeaf returns a connection of a client that reads nothing until the function is called.
func (r *harness) dialDeaf() (conn *grpc.ClientConn, listen func()) {
	r.t.Helper()
	from, until := make(chan struct{}), make(chan struct{})
	var err error
	conn, err = grpc.NewClient("passthrough:///deaf", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "unix", r.path)
			return &deaf{c, from, until}, err
		}))
	if err != nil {
		r.t.Fatal(err)
	}
	listen = sync.OnceFunc(func() { close(until) })
	r.t.Cleanup(func() { listen(); conn.Close() })
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		conn.WaitForStateChange(r.t.Context(), s)
	}
	close(from)
	return conn, listen
}

// A client asks on several connections, and reads no answer. devmgrd builds a few of them, and another process is answered meanwhile.
func TestUnread_ClientReadsNothing_AnswersHaveALimit(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.server.SetReadLimit(time.Hour)
	r.offerMany()
	var work sync.WaitGroup
	var all []func()
	for range 3 {
		conn, listen := r.dialDeaf()
		all = append(all, func() {
			go conn.Close() // it waits for the end of its reader
			listen()
		})
		for range 30 {
			work.Go(func() {
				_, _ = v1.NewPodResourcesListerClient(conn).GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
			})
		}
	}
	plugintest.Eventually(t, "the client has its share", func() bool { return r.server.Unread() >= podresources.MaxUnreadOfClient })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), self)
	other.Env = append(os.Environ(), "PODRESOURCES_LIST="+r.path, plugintest.QuickExit)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process is not served: %v\n%s", err, out)
	}
	if n := r.server.Unread(); n > podresources.MaxUnreadOfClient+4<<20 {
		t.Errorf("%d bytes have not been read", n)
	}
	for _, close := range all {
		close()
	}
	work.Wait()
	plugintest.Eventually(t, "nothing is kept for connections that are closed", func() bool { return r.server.Unread() == 0 })
}

// Who reads nothing for a time loses the connection, and what was kept for it.
func TestUnread_ClientReadsNothingForTooLong_ConnectionIsClosed(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.server.SetReadLimit(100 * time.Millisecond)
	r.offerMany()
	conn, listen := r.dialDeaf()
	failed := make(chan error, 1)
	go func() {
		_, err := v1.NewPodResourcesListerClient(conn).GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
		failed <- err
	}()
	plugintest.Eventually(t, "the answer is built", func() bool { return r.metric("devmgrd_podresources_requests_total", "GetAllocatableResources") == 1 })
	plugintest.Eventually(t, "nothing is kept", func() bool { return r.server.Unread() == 0 })
	listen()
	if err := <-failed; status.Code(err) != codes.Unavailable {
		t.Errorf("the call ended with %v", err)
	}
	if n := r.log.count("PodResources client not reading"); n != 1 {
		t.Errorf("the log has %d lines about that", n)
	}
}

// An agent asks many times at once, for more than its share of unread answers. It gets all of them.
func TestUnread_ManyRequestsAtOnce_AllAreAnswered(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.offerMany()
	conn := plugintest.Client(t, r.path)
	var work sync.WaitGroup
	for range 12 {
		work.Go(func() {
			all, err := v1.NewPodResourcesListerClient(conn).GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{}, grpc.MaxCallRecvMsgSize(64<<20))
			if err != nil || len(all.Devices) != 2500 {
				t.Errorf("%d devices, %v", len(all.GetDevices()), err)
			}
		})
	}
	work.Wait()
	if n := r.server.Unread(); n != 0 {
		t.Errorf("%d bytes count as unread", n)
	}
}
