package podresources_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A follower does what the protocol tells its readers to do.
type follower struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[podresourcesv1.WatchResponse]
	resume string
	has    map[string]string // devices by pod
	whole  bool              // no snapshot is half told
	told   []string          // each change, in order
}

func follow(t *testing.T, ctx context.Context, c podresourcesv1.PodResourcesServiceClient, resume string) *follower {
	t.Helper()
	f := &follower{t: t, has: map[string]string{}, whole: resume != ""}
	f.again(ctx, c, resume)
	return f
}

// again watches from a point on.
func (f *follower) again(ctx context.Context, c podresourcesv1.PodResourcesServiceClient, resume string) {
	f.t.Helper()
	var err error
	f.stream, err = c.Watch(ctx, &podresourcesv1.WatchRequest{Resume: resume})
	if err != nil {
		f.t.Fatal(err)
	}
}

// next takes one response.
func (f *follower) next() error {
	r, err := f.stream.Recv()
	if err != nil {
		return err
	}
	if s := r.GetSnapshot(); s != nil {
		if s.First {
			f.has, f.whole = map[string]string{}, false
		}
		for _, p := range s.Pods {
			f.has[p.Uid] = devices(p)
		}
		f.whole = s.Last
		if (r.Resume != "") != s.Last {
			f.t.Errorf("resume %q, last %v", r.Resume, s.Last)
		}
	} else if !f.whole {
		f.t.Error("there is a change before the snapshot is complete")
	}
	if p := r.GetChange().GetAssigned(); p != nil {
		f.has[p.Uid] = devices(p)
		f.told = append(f.told, "+"+p.Name)
	}
	if p := r.GetChange().GetReleased(); p != nil {
		if f.has[p.Uid] != devices(p) {
			f.t.Errorf("%s releases %s, and had %s", p.Name, devices(p), f.has[p.Uid])
		}
		delete(f.has, p.Uid)
		f.told = append(f.told, "-"+p.Name)
	}
	if r.GetChange() != nil && time.Since(r.GetChange().Time.AsTime()) > time.Hour {
		f.t.Errorf("the change is of %v", r.GetChange().Time.AsTime())
	}
	if r.Resume != "" {
		f.resume = r.Resume
	}
	return nil
}

// until takes responses until something is so.
func (f *follower) until(condition func() bool) {
	f.t.Helper()
	for !condition() {
		if err := f.next(); err != nil {
			f.t.Fatal(err)
		}
	}
}

func devices(p *podresourcesv1.Pod) string {
	var all []string
	for _, c := range p.Containers {
		for _, d := range c.Devices {
			all = append(all, fmt.Sprintf("%s:%s/%s%v", c.Name, d.ResourceName, d.Id, d.NumaNodes))
		}
	}
	if p.Ended {
		all = append(all, "ended")
	}
	return strings.Join(all, " ")
}

// A snapshot, then every change; and again from where one was.
func TestWatch(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Offer(gpu, device.Serving, device.Device{ID: "a", Healthy: true, NUMA: []int{0, 1}}, device.Device{ID: "b", Healthy: true})
	r.bind("plain", "", 0)
	one := r.bind("one", gpu, 1)
	ctx, cancel := context.WithCancel(t.Context())
	f := follow(t, ctx, r.watch, "")
	f.until(func() bool { return f.whole })
	want := map[string]string{"uid-one": "main:vendor.com/gpu/a[0 1]"}
	if !maps.Equal(f.has, want) {
		t.Fatalf("the snapshot has %v, want %v", f.has, want)
	}
	r.bind("two", gpu, 1)
	f.until(func() bool { return f.has["uid-two"] == "main:vendor.com/gpu/b[]" })

	c := device.Running{ID: "1", Container: device.Container{Pod: one.Pod.UID, Name: "main"}}
	r.RuntimeCreating(t.Context(), c)
	r.Drop(one.Pod.UID)
	f.until(func() bool { return f.has["uid-one"] == "main:vendor.com/gpu/a[0 1] ended" })

	// Without a watch.
	cancel()
	before := f.resume
	r.RuntimeStopped(c)
	r.bind("three", gpu, 1)
	f.told = nil
	f.again(t.Context(), r.watch, before)
	f.until(func() bool { return f.has["uid-three"] != "" })
	if !slices.Equal(f.told, []string{"-one", "+three"}) {
		t.Errorf("since %s there has been %v", before, f.told)
	}

	// A point of another life, or nonsense, is answered with a snapshot.
	for _, point := range []string{"another-5", "x", f.resume + "9", "-"} {
		g := follow(t, t.Context(), r.watch, point)
		g.whole = false
		g.until(func() bool { return g.whole })
		if !maps.Equal(g.has, f.has) {
			t.Errorf("from %q: %v, want %v", point, g.has, f.has)
		}
	}

	// The end of the daemon.
	go r.end()
	for {
		if err := f.next(); err != nil {
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "resume") {
				t.Errorf("at the daemon's end: %v", err)
			}
			break
		}
	}
}

// No change is lost or told in another order, however many there are, to however many.
func TestWatchUnderChurn(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 8)
	plugintest.Eventually(t, "the devices are there", func() bool { return len(r.Resources().Offers()) == 1 })
	var all []*follower
	for range 8 {
		f := follow(t, t.Context(), r.watch, "")
		f.until(func() bool { return f.whole })
		all = append(all, f)
	}
	const pods = 500
	var want []string
	go func() {
		for i := range pods {
			d := pod(fmt.Sprint("p", i), gpu, 1)
			r.Bind(d)
			for moved := r.Updated(); r.PodByUID(d.Pod.UID).State != device.Ready; moved = r.Updated() {
				<-moved
			}
			r.Drop(d.Pod.UID)
			for moved := r.Updated(); len(r.Snapshot().Pods) > 0; moved = r.Updated() {
				<-moved
			}
		}
	}()
	for i := range pods {
		// Assigned, over, released.
		want = append(want, fmt.Sprint("+p", i), fmt.Sprint("+p", i), fmt.Sprint("-p", i))
	}
	for i, f := range all {
		f.until(func() bool { return len(f.told) == len(want) })
		if !slices.Equal(f.told, want) {
			t.Errorf("follower %d was told %v", i, f.told)
		}
	}
}

// A client that does not read is dropped with the reason, and can resume.
func TestASlowReader(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.server.SetReadLimit(2 * time.Second)
	r.Plugins.Stock(gpu, 2000)
	plugintest.Eventually(t, "the devices are there", func() bool { return len(r.Resources().Offers()) == 1 })
	slow := follow(t, t.Context(), r.smallWindow(), "")
	slow.until(func() bool { return slow.whole })

	// A pod of 1000 devices is some 30 KiB, and the window has room for 64.
	for i := range 10 {
		d := r.bind(fmt.Sprint("p", i), gpu, 1000)
		r.Drop(d.Pod.UID)
	}
	plugintest.Eventually(t, "the reader is dropped", func() bool {
		return r.metric("devmgrd_podresources_requests_total", "Watch", codes.ResourceExhausted.String()) == 1
	})
	for {
		if err := slow.next(); err != nil {
			if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "too slowly") {
				t.Errorf("the slow reader was told %v", err)
			}
			break
		}
	}
	r.server.SetReadLimit(time.Minute) // from here on the reader reads, as quickly as the machine lets it
	r.bind("last", gpu, 1)
	slow.again(t.Context(), r.watch, slow.resume)
	slow.until(func() bool { return slow.has["uid-last"] != "" })
	if len(slow.has) != 1 || !slices.Contains(slow.told, "-p9") {
		t.Errorf("in the end the reader knows of %d pods", len(slow.has))
	}
}

// A snapshot of many devices comes in parts that any client takes.
func TestALargeSnapshot(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 40000)
	for i := range 40 {
		r.bind(fmt.Sprint("p", i), gpu, 1000)
	}
	f := follow(t, t.Context(), r.watch, "")
	parts := 0
	f.until(func() bool { parts++; return f.whole })
	if len(f.has) != 40 || parts < 2 {
		t.Errorf("%d pods in %d parts", len(f.has), parts)
	}
}

// The daemon ends although a client neither reads nor closes.
func TestADeafReaderDoesNotHoldUpTheEnd(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1000)
	f := follow(t, t.Context(), r.smallWindow(), "")
	f.until(func() bool { return f.whole })
	for i := range 10 {
		r.Drop(r.bind(fmt.Sprint("p", i), gpu, 1000).Pod.UID)
	}
	r.end()
}

// smallWindow returns a client of the watch whose window has 64 KiB. By default gRPC lets the window grow with what arrives,
// so that it may hold all that a test sends.
func (r *harness) smallWindow() podresourcesv1.PodResourcesServiceClient {
	r.t.Helper()
	plugintest.Eventually(r.t, "the socket is there", func() bool { _, err := os.Lstat(r.path); return err == nil })
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(64<<10),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", r.path)
		}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return podresourcesv1.NewPodResourcesServiceClient(conn)
}

// A client has watches up to a limit. When one has ended there may be another.
func TestWatch_TooManyOfOneClient_AreRefused(t *testing.T) {
	t.Parallel()
	r := start(t)
	watch := func(ctx context.Context) error {
		stream, err := r.watch.Watch(ctx, &podresourcesv1.WatchRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for range podresources.ClientWatches {
		if err := watch(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch(t.Context()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one more ended with %v", err)
	}
	end()
	plugintest.Eventually(t, "there is room for another", func() bool { return watch(t.Context()) == nil })
}
