package podresources_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// TestMain may be the noisy client of TestANoisyClient, which has to be another process.
func TestMain(m *testing.M) {
	if path := os.Getenv("PODRESOURCES_NOISE"); path != "" {
		makeNoise(path)
		return
	}
	if path := os.Getenv("PODRESOURCES_LIST"); path != "" {
		listOnce(path)
		return
	}
	plugintest.AtOnce(8)
	os.Exit(m.Run())
}

// makeNoise asks as much as it can until its standard input is closed. It prints a line when it has been refused, and is wrong
// if that is in other words than the kubelet's.
func makeNoise(path string) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var refused atomic.Bool
	for range 8 {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			panic(err)
		}
		client := v1.NewPodResourcesListerClient(conn)
		for range 60 {
			all.Go(func() {
				for ctx.Err() == nil {
					_, err := client.List(ctx, &v1.ListPodResourcesRequest{})
					if status.Code(err) == codes.ResourceExhausted && status.Convert(err).Message() == "rejected by rate limit" && !refused.Swap(true) {
						fmt.Println("refused")
					}
				}
			})
		}
	}
	bufio.NewReader(os.Stdin).ReadByte()
	cancel()
	all.Wait()
}

// A client that asks all the time is slowed down and refused, and another one does not notice.
func TestANoisyClient(t *testing.T) {
	t.Parallel()
	r := start(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	noise := exec.Command(self)
	noise.Env = append(os.Environ(), "PODRESOURCES_NOISE="+r.path, plugintest.QuickExit)
	in, err := noise.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := noise.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	noise.Stderr = os.Stderr
	if err := noise.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := noise.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "refused\n" {
		t.Fatalf("the noisy client said %q, %v", line, err)
	}
	for range podresources.ClientBurst {
		if _, err := r.v1.List(t.Context(), &v1.ListPodResourcesRequest{}); err != nil {
			t.Fatalf("next to a noisy client: %v", err)
		}
	}
}

// Who asks more often than it may waits its turn, also if it dials again each time.
func TestAClientWaitsItsTurn(t *testing.T) {
	t.Parallel()
	r := start(t)
	for range podresources.ClientBurst + 20 {
		conn, err := grpc.NewClient("unix://"+r.path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = v1.NewPodResourcesListerClient(conn).GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestServe is the server of TestConnections_OtherPIDNamespace, which has to be another process. It says where it serves, and
// ends with its standard input.
func TestServe(t *testing.T) {
	if os.Getenv("PODRESOURCES_SERVE") == "" {
		t.Skip("a part of another test")
	}
	r := start(t)
	r.list()
	fmt.Println("at " + r.path)
	_, _ = os.Stdin.Read(make([]byte, 1))
}

// opened is a connection, and whether the server has spoken: it speaks first when it serves, and not to those in line.
func opened(t *testing.T, path string) (net.Conn, <-chan bool) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	served := make(chan bool, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		served <- err == nil
	}()
	return conn, served
}

// greedy opens as many connections as one process may have, besides those that it has, and one more, which waits. Meanwhile
// another process is served. When one connection is closed the last one is, too.
func greedy(t *testing.T, path string, has int) {
	t.Helper()
	var all []net.Conn
	for range podresources.ClientConnections - has {
		conn, served := opened(t, path)
		if !<-served {
			t.Fatalf("connection %d is refused", len(all)+has+1)
		}
		all = append(all, conn)
	}
	_, served := opened(t, path)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), self)
	other.Env = append(os.Environ(), "PODRESOURCES_LIST="+path, plugintest.QuickExit)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another process is not served: %v\n%s", err, out)
	}
	select {
	case good := <-served:
		t.Errorf("one connection too many does not wait; served: %v", good)
		return
	default:
	}
	all[0].Close()
	if !<-served {
		t.Error("the connection in line is not served in the place of one that is closed")
	}
}

// listOnce asks once, and fails if it is not answered in time.
func listOnce(path string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	if _, err := v1.NewPodResourcesListerClient(conn).List(ctx, &v1.ListPodResourcesRequest{}); err != nil {
		panic(err)
	}
}

// One process does not use up all connections.
func TestConnections(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.list()
	greedy(t, r.path, 1)
}

// Nor does it where the server is in a PID namespace of its own, as in the DaemonSet: there no client has a process ID.
func TestConnections_OtherPIDNamespace(t *testing.T) {
	plugintest.NeedRoot(t)
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := exec.Command(self, "-test.run=^TestServe$")
	server.Env = append(os.Environ(), "PODRESOURCES_SERVE=1", plugintest.QuickExit)
	server.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	in, err := server.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	server.Stderr = os.Stderr
	if err := server.Start(); err != nil {
		t.Fatalf("starting a process in a PID namespace: %v", err)
	}
	t.Cleanup(func() { in.Close(); _ = server.Wait() })
	var path string
	if _, err := fmt.Fscanf(out, "at %s\n", &path); err != nil {
		t.Fatalf("the server does not say where it serves: %v", err)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	first, served := opened(t, path)
	if !<-served {
		t.Fatal("the first connection is refused")
	}
	if namesOutsiders(t, first) {
		greedy(t, path, 1)
		return
	}
	for n := range 2 * podresources.ClientConnections { // each is a client of its own
		if _, served := opened(t, path); !<-served {
			t.Fatalf("connection %d is refused", n+2)
		}
	}
}

// namesOutsiders reports whether the kernel names processes of other PID namespaces.
func namesOutsiders(t *testing.T, conn net.Conn) bool {
	t.Helper()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	named := false
	if err := raw.Control(func(socket uintptr) {
		fd, err := unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err != nil {
			return
		}
		defer unix.Close(fd)
		var fs unix.Statfs_t
		named = unix.Fstatfs(fd, &fs) == nil && fs.Type == 0x50494446 // the file system of pidfds
	}); err != nil {
		t.Fatal(err)
	}
	return named
}

// The socket is the owner's and the group's, and goes with the daemon.
func TestTheSocket(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.list()
	for path, want := range map[string]os.FileMode{r.path: os.ModeSocket | 0o660, filepath.Dir(r.path): os.ModeDir | 0o750} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", path, info.Mode(), err, want)
		}
	}
	if err := r.server.Check(); err != nil {
		t.Error(err)
	}
	r.end()
	if _, err := os.Lstat(r.path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// Another process has the path: that is reported, does not disturb it, and ends when it goes.
func TestSomebodyElseHasThePath(t *testing.T) {
	t.Parallel()
	var other net.Listener
	r := start(t, func(c *podresources.Config) {
		if err := os.MkdirAll(filepath.Dir(c.Socket), 0o750); err != nil {
			t.Fatal(err)
		}
		var err error
		if other, err = net.Listen("unix", c.Socket); err != nil {
			t.Fatal(err)
		}
	})
	plugintest.Eventually(t, "the failure shows", func() bool { return r.server.Check() != nil })
	if err := r.server.Check(); err == nil || !strings.Contains(err.Error(), "podResources.socket") {
		t.Errorf("the failure shows as %v", err)
	}
	other.Close()
	r.list()
	if err := r.server.Check(); err != nil {
		t.Error(err)
	}
}

// api counts what is asked of it.
type api struct{ n atomic.Int64 }

func (a *api) Find(context.Context, string, string) (bool, error) { a.n.Add(1); return false, nil }

// Who asks often for a pod that only the kubelet knows does not make the API server pay for it.
func TestFindIsShared(t *testing.T) {
	t.Parallel()
	a := &api{}
	r := start(t, func(c *podresources.Config) { c.Pods = a })
	r.kubelet.has(func() {
		r.kubelet.pods = []*v1.PodResources{{Name: "static", Namespace: "ns", Containers: []*v1.ContainerResources{{Name: "c"}}}}
	})
	plugintest.Eventually(t, "served", func() bool {
		_, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "static"})
		return err == nil
	})
	a.n.Store(0)
	var all sync.WaitGroup
	for range 80 {
		all.Go(func() {
			if _, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "static"}); err != nil && status.Code(err) != codes.Unavailable {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := a.n.Load(); n > 15 {
		t.Errorf("80 questions of one client within a second became %d requests to the API server", n)
	}
}

// A request's headers stay in memory as long as a watch does.
func TestRequest_HeadersAreLong_IsRefused(t *testing.T) {
	t.Parallel()
	r := start(t)
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x", strings.Repeat("~", 32<<10))
	if _, err := r.v1.List(ctx, &v1.ListPodResourcesRequest{}); err == nil || !strings.Contains(err.Error(), "header list size") {
		t.Errorf("a request with long headers is answered: %v", err)
	}
}
