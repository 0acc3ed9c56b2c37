package nri

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// A listener is the rooms around the connection: it passes the runtime's lists on.
type listener struct {
	harness
	connection *Connection
	lists      chan []device.Running
}

func (l *listener) RuntimeSynced(all []device.Running, _ []device.PodDemand) { l.lists <- all }

// runtime starts NRI's own side of the connection, as containerd does, with these pods and containers. It returns the socket.
func runtime(t *testing.T, pods []*api.PodSandbox, containers []*api.Container) (*adaptation.Adaptation, string) {
	t.Helper()
	return runtimeOf(t, func() ([]*api.PodSandbox, []*api.Container) { return pods, containers })
}

// runtimeOf is runtime with what there is at each connection.
func runtimeOf(t *testing.T, has func() ([]*api.PodSandbox, []*api.Container)) (*adaptation.Adaptation, string) {
	t.Helper()
	return runtimeNamed(t, "containerd", "v2.4.2", has)
}

// runtimeNamed is runtimeOf for a runtime that introduces itself like this.
func runtimeNamed(t *testing.T, name, version string, has func() ([]*api.PodSandbox, []*api.Container)) (*adaptation.Adaptation, string) {
	t.Helper()
	adaptation.SetPluginRequestTimeout(patience) // this machine may be busy
	dir := t.TempDir()
	socket := filepath.Join(dir, "nri.sock")
	r, err := adaptation.New(name, version,
		func(ctx context.Context, sync adaptation.SyncCB) error {
			pods, containers := has()
			_, err := sync(ctx, pods, containers)
			return err
		},
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath(socket), adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r, socket
}

// connect runs a Connection to a socket until the test has ended.
func connect(t *testing.T, socket string, limit time.Duration) *listener {
	t.Helper()
	return connectWith(t, socket, func(n *Connection) { n.limit = limit })
}

// connectWith is connect with a change of the Connection.
func connectWith(t *testing.T, socket string, change func(*Connection)) *listener {
	t.Helper()
	l := &listener{lists: make(chan []device.Running, 16)}
	l.harness.set(device.Readiness{State: device.NoDevices})
	n := New(Config{Socket: socket, Index: "05", MaxWait: time.Second, Allocator: l, Runtime: l, Pods: l, Notifier: l, Dirs: &harness{}, Presence: &Presence{},
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	change(n)
	l.connection = n
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := n.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return l
}

func (l *listener) list(t *testing.T) []device.Running {
	t.Helper()
	select {
	case all := <-l.lists:
		return all
	case <-time.After(patience):
		t.Fatal("the runtime and devmgrd do not come together")
		return nil
	}
}

// A container has to fit into one message of 4 MiB, whatever number of devices it has.
func TestConnection_ContainerWithManyDevices(t *testing.T) {
	t.Parallel()
	for name, ids := range map[string][]device.ID{
		"numbered":  megabytes("GPU-8f6d2c4e-1111-2222-3333-444455556666-MIG-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", 60_000),
		"scattered": scattered(60_000),
	} {
		t.Run(name, func(t *testing.T) {
			as := device.Assignment{Container: main, Shares: []device.Share{{Resource: "a.com/x", IDs: ids}}}
			large := container()
			large.Annotations = map[string]string{stampKey: stamp(as)}
			all := []*api.Container{large}
			for i := range 20 {
				other := container()
				other.Id = fmt.Sprint("other-", i)
				for e := range 400 {
					other.Env = append(other.Env, fmt.Sprintf("VARIABLE_%d=%060d", e, e))
				}
				all = append(all, other)
			}
			_, socket := runtime(t, []*api.PodSandbox{sandbox()}, all)
			got := connect(t, socket, startLimit).list(t)
			if len(got) != len(all) {
				t.Fatalf("%d containers are listed, want %d", len(got), len(all))
			}
			if n, digest := len(got[0].Stamp["a.com/x"]), got[0].Digests["a.com/x"]; n != 60_000 && digest != device.Digest(ids) {
				t.Errorf("the container is listed with %d devices and the digest %q", n, digest)
			}
		})
	}
}

// A stalling is a runtime's socket whose first connection delivers nothing behind the answer to RegisterPlugin.
type stalling struct {
	path  string
	first chan struct{} // closed when devmgrd has closed the first connection
}

func stall(t *testing.T, socket string) *stalling {
	t.Helper()
	s := &stalling{path: filepath.Join(t.TempDir(), "stalling.sock"), first: make(chan struct{})}
	l, err := net.Listen("unix", s.path)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	t.Cleanup(func() { l.Close(); work.Wait() })
	work.Go(func() {
		for stalls := true; ; stalls = false {
			ours, err := l.Accept()
			if err != nil {
				return
			}
			theirs, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				return
			}
			work.Go(func() {
				if !stalls {
					io.Copy(ours, theirs)
				} else if err := copyFrame(ours, theirs); err != nil && !errors.Is(err, net.ErrClosed) { // devmgrd may give up before
					t.Error(err)
				}
				if !stalls {
					ours.Close()
				}
			})
			work.Go(func() {
				io.Copy(theirs, ours)
				theirs.Close()
				ours.Close()
				if stalls {
					close(s.first)
				}
			})
		}
	})
	return s
}

// copyFrame passes on one frame of NRI's multiplexing: the connection and the size, of four bytes each, and the rest.
func copyFrame(to io.Writer, from io.Reader) error {
	head := make([]byte, 8)
	if _, err := io.ReadFull(from, head); err != nil {
		return err
	}
	rest := make([]byte, binary.BigEndian.Uint32(head[4:]))
	if _, err := io.ReadFull(from, rest); err != nil {
		return err
	}
	_, err := to.Write(append(head, rest...))
	return err
}

// The runtime hangs between its answer to RegisterPlugin and Configure, longer than an attempt may take. When it goes on
// there must not be a second plugin of ours.
func TestConnection_RuntimeHangsWhileItStarts_LeavesNoSecondPlugin(t *testing.T) {
	t.Parallel()
	r, socket := runtime(t, []*api.PodSandbox{sandbox()}, nil)
	s := stall(t, socket)
	l := connect(t, s.path, 100*time.Millisecond)
	select {
	case <-s.first:
	case <-time.After(patience):
		t.Fatal("the connection of the first attempt stays open")
	}
	l.list(t)
	asked := 0
	plugintest.Eventually(t, "devmgrd is asked about a container", func() bool { // the runtime takes a plugin up a moment after it has synchronized it
		if _, err := r.CreateContainer(t.Context(), &api.CreateContainerRequest{Pod: sandbox(), Container: container()}); err != nil {
			t.Fatal(err)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		asked = l.claims
		return asked > 0
	})
	if asked != 1 {
		t.Errorf("%d plugins of ours were asked about a container, want 1", asked)
	}
}

// claimFiles are CDI files of claims. The first question for the devices of a container waits for goOn.
type claimFiles struct {
	asked, goOn chan struct{}
	later       atomic.Bool
	hooks       chan cdi.Hook
}

func (c *claimFiles) Devices([]string) map[device.ResourceName][]device.ID {
	if !c.later.Swap(true) {
		close(c.asked)
		<-c.goOn
	}
	return nil
}
func (c *claimFiles) SetHook(now cdi.Hook, _ int32)             { c.hooks <- now }
func (c *claimFiles) File(device.ClaimRequest) (cdi.File, bool) { return cdi.File{}, false }
func (c *claimFiles) Used(...device.ClaimRequest)               {}
func (c *claimFiles) Outdated(device.Container)                 {}

// relay passes on all connections to a runtime's socket. cut ends those that there are.
func relay(t *testing.T, socket string) (path string, cut func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "relay.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	cut = func() {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
		open = nil
	}
	t.Cleanup(func() { l.Close(); cut(); work.Wait() })
	work.Go(func() {
		for {
			ours, err := l.Accept()
			if err != nil {
				return
			}
			theirs, err := net.Dial("unix", socket)
			if err != nil {
				t.Error(err)
				ours.Close()
				return
			}
			mu.Lock()
			open = append(open, ours, theirs)
			mu.Unlock()
			work.Go(func() { io.Copy(ours, theirs); ours.Close() })
			work.Go(func() { io.Copy(theirs, ours); theirs.Close() })
		}
	})
	return path, cut
}

// The connection is lost while devmgrd handles the runtime's list, and the next one is there before it is done: the former list counts for nothing.
func TestConnection_LostWhileTheListIsHandled_ListDoesNotCount(t *testing.T) {
	t.Parallel()
	withClaim := container()
	withClaim.CDIDevices = []*api.CDIDevice{{Name: cdi.DeviceName(device.ClaimRequest{Claim: "c", Request: "r"}, "d")}}
	_, socket := runtime(t, []*api.PodSandbox{sandbox()}, []*api.Container{withClaim})
	path, cut := relay(t, socket)
	files := &claimFiles{asked: make(chan struct{}), goOn: make(chan struct{}), hooks: make(chan cdi.Hook, 16)}
	metrics := prometheus.NewRegistry()
	l := connectWith(t, path, func(n *Connection) {
		n.Claims = files
		metrics.MustRegister(n.metrics.hooks)
	})
	<-files.asked
	cut()
	if now := <-files.hooks; now != cdi.Away {
		t.Errorf("the hook is %v, want Away", now)
	}
	l.list(t)
	if now := <-files.hooks; now == cdi.Away {
		t.Error("the hook is Away after the next connection")
	}
	close(files.goOn)
	plugintest.Eventually(t, "both lists have been handled", func() bool {
		all, err := metrics.Gather()
		return err == nil && len(all) == 1 && all[0].Metric[0].Histogram.GetSampleCount() == 2
	})
	if len(l.lists) > 0 || len(files.hooks) > 0 {
		t.Errorf("%d lists and %d hooks are reported late", len(l.lists), len(files.hooks))
	}
}
