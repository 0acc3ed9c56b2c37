package dra

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"
	drav1 "k8s.io/kubelet/pkg/apis/dra/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// readiness is an allocator whose containers become ready when the test says so.
type readiness struct {
	takes   time.Duration // an answer
	mu      sync.Mutex
	ready   map[device.Container]bool
	updated chan struct{}
}

func (r *readiness) Readiness(c device.Container) device.Readiness {
	time.Sleep(r.takes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready[c] {
		return device.Readiness{State: device.Ready}
	}
	return device.Readiness{State: device.Waiting, Wait: device.Wait{Reason: device.PluginMissing, Message: "no device plugin has registered " + string(gpu)}}
}

func (r *readiness) Updated() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.updated
}

func (r *readiness) serve(c device.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ready[c] = true
	close(r.updated)
	r.updated = make(chan struct{})
}

// written are the CDI files of claims, as package cdi names them.
type written struct {
	mu     sync.Mutex
	claims map[device.ClaimUID][]device.Container // that use them
	untold bool
	latest map[device.ClaimUID]cdi.Claim // of each claim the last one, since missing files are written as well
	fails  error
	failed bool // a write has

	unreadable error // by the runtime
	asked      int   // Readable
}

func (w *written) Readable(ctx context.Context) error {
	if _, limited := ctx.Deadline(); !limited {
		return errors.New("waits without a limit")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	return w.unreadable
}

func (w *written) Prepare(_ context.Context, c cdi.Claim) (all [][]string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range c.Devices {
		all = append(all, []string{cdi.DeviceName(device.ClaimRequest{Claim: c.UID, Request: d.Request}, d.Name)})
	}
	if w.fails == nil {
		w.claims[c.UID], w.latest[c.UID] = c.Users, c
		w.untold = w.untold || c.Untold
	}
	w.failed = w.failed || w.fails != nil
	return all, w.fails
}

// last returns what was last prepared of a claim.
func (w *written) last(uid device.ClaimUID) cdi.Claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.latest[uid]
}

func (w *written) Unprepared(uid device.ClaimUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.claims, uid)
}

func (w *written) Missing(all []device.ClaimRequest) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(all, func(of device.ClaimRequest) bool { return w.claims[of.Claim] == nil })
}

// A kubelet is what calls the server.
type kubelet struct {
	t        testing.TB
	world    *world
	claims   *Claims
	devices  *readiness
	files    *written
	server   *Server
	driver   drav1.DRAPluginClient
	health   health.DRAResourceHealthClient
	registry registration.RegistrationClient
}

// newServer makes a server, which does not run.
func newServer(t testing.TB, hold time.Duration) *kubelet {
	w, claims := newWorld(t)
	dir := t.TempDir()
	devices, files := &readiness{ready: map[device.Container]bool{}, updated: make(chan struct{})}, &written{claims: map[device.ClaimUID][]device.Container{}, latest: map[device.ClaimUID]cdi.Claim{}}
	s := NewServer(ServerConfig{
		RegistryDir: filepath.Join(dir, "plugins_registry"), PluginsDir: filepath.Join(dir, "plugins"), Claims: claims, Allocator: devices, Files: files, Hold: hold,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	return &kubelet{t: t, world: w, claims: claims, devices: devices, files: files, server: s, driver: direct{s}}
}

// direct is the client of a Server without a connection.
type direct struct{ server *Server }

func (d direct) NodePrepareResources(ctx context.Context, r *drav1.NodePrepareResourcesRequest, _ ...grpc.CallOption) (*drav1.NodePrepareResourcesResponse, error) {
	return d.server.NodePrepareResources(ctx, r)
}

func (d direct) NodeUnprepareResources(ctx context.Context, r *drav1.NodeUnprepareResourcesRequest, _ ...grpc.CallOption) (*drav1.NodeUnprepareResourcesResponse, error) {
	return d.server.NodeUnprepareResources(ctx, r)
}

// newKubelet starts a server, and connects to it as the kubelet does: by the socket in plugins_registry.
func newKubelet(t testing.TB, hold time.Duration) *kubelet {
	k := newServer(t, hold)
	k.server.rewriteTime = 100 * time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	var work sync.WaitGroup
	for _, run := range []func(context.Context) error{k.claims.Run, k.server.Run} {
		work.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() { stop(); work.Wait() })
	k.registry = registration.NewRegistrationClient(plugintest.Client(t, filepath.Join(k.server.RegistryDir, "devmgrd.io-reg.sock")))
	info, err := k.registry.GetInfo(t.Context(), &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if info.Type != "DRAPlugin" || info.Name != "devmgrd.io" || !slices.Contains(info.SupportedVersions, "v1.DRAPlugin") {
		t.Errorf("the kubelet receives %v", info)
	}
	conn := plugintest.Client(t, info.Endpoint)
	k.driver, k.health = drav1.NewDRAPluginClient(conn), health.NewDRAResourceHealthClient(conn)
	return k
}

// reserve reserves a claim of the world for these pods only.
func (w *world) reserve(name string, pods ...device.PodUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.claims["default/"+name]
	c.Status.ReservedFor = nil
	for _, uid := range pods {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: string(uid), UID: types.UID(uid)})
	}
}

// prepare asks to prepare a claim, and returns the devices or the error.
func (k *kubelet) prepare(name string) string {
	uid := "uid-" + name
	answer, err := k.driver.NodePrepareResources(context.Background(), &drav1.NodePrepareResourcesRequest{Claims: []*drav1.Claim{{Namespace: "default", Name: name, Uid: uid}}})
	if err != nil {
		return err.Error()
	}
	one := answer.Claims[uid]
	if one.GetError() != "" {
		return one.GetError()
	}
	var all []string
	for _, d := range one.GetDevices() {
		if of := (device.ClaimRequest{Claim: device.ClaimUID(uid), Request: d.RequestNames[0]}); !slices.Equal(d.CdiDeviceIds, []string{cdi.DeviceName(of, d.DeviceName)}) {
			all = append(all, "CDI devices "+strings.Join(d.CdiDeviceIds, ","))
		}
		all = append(all, strings.Join(d.RequestNames, "+")+"="+d.PoolName+":"+d.DeviceName)
	}
	return strings.Join(all, " ")
}

// The kubelet's limit is for all claims of a pod together.
func TestServer_ManyClaims_AreReadTogether(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	const n = 10
	request := &drav1.NodePrepareResourcesRequest{}
	for i := range n {
		request.Claims = append(request.Claims, &drav1.Claim{Namespace: "default", Name: fmt.Sprint("c", i), Uid: fmt.Sprint("uid-c", i)})
	}
	var asked sync.WaitGroup
	asked.Add(n)
	k.world.answers = func() { asked.Done(); asked.Wait() } // none answers before all are asked
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if answer, err := k.driver.NodePrepareResources(ctx, request); err != nil || len(answer.Claims) != n {
		t.Errorf("%d answers, %v", len(answer.GetClaims()), err)
	}
}

func TestServer_DevicesAreThere_AnswersAtOnce(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	k.world.list(gpu, "1", "2")
	k.world.allocate("c", "a=a.example/gpu:2", "other:b=a.example/gpu:1")
	k.world.reserve("c", "p")
	k.claims.Bind(demand("p", "side", "main c"))
	k.devices.serve(device.Container{Pod: "p", Name: "main"})
	if got := k.prepare("c"); got != "a=n1/a.example/gpu/0:2" {
		t.Error(got)
	}
	answer, err := k.driver.NodeUnprepareResources(t.Context(), &drav1.NodeUnprepareResourcesRequest{Claims: []*drav1.Claim{{Namespace: "default", Name: "gone", Uid: "u"}}})
	if err != nil || answer.Claims["u"] == nil || answer.Claims["u"].Error != "" {
		t.Errorf("unprepare: %v, %v", answer, err)
	}
}

// The runtime does not read the files, and does later. Claims without devices need none.
func TestServer_FilesNotReadable_Fails(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	k.world.list(gpu, "1")
	k.world.allocate("c", "a=a.example/gpu:1")
	k.world.allocate("none")
	k.world.reserve("c", "p")
	k.claims.Bind(demand("p", "main c"))
	k.devices.serve(device.Container{Pod: "p", Name: "main"})
	reads := func(err error) {
		k.files.mu.Lock()
		defer k.files.mu.Unlock()
		k.files.unreadable = err
	}
	reads(errors.New("CDI is off"))
	if got := k.prepare("c"); got != "CDI is off" {
		t.Error(got)
	}
	if got := k.prepare("none"); got != "" {
		t.Error(got)
	}
	reads(nil)
	if got := k.prepare("c"); got != "a=n1/a.example/gpu/0:1" {
		t.Error(got)
	}
}

// Claims wait while devices change all the time. Each change wakes all of them, and each has to look. Their looks together take a tenth of the time.
func TestServer_ManyChanges_WaitingCostsLittle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const claims, while, look, change = 8, 10 * time.Second, time.Millisecond, 100 * time.Microsecond
		k := newServer(t, time.Minute)
		k.devices.takes = look // one pod for each claim
		k.world.list(gpu, "1")
		hold, end := context.WithTimeout(t.Context(), 2*while)
		var work sync.WaitGroup
		for i := range claims {
			uid, name := device.PodUID(fmt.Sprint("p", i)), fmt.Sprint("c", i)
			k.claims.Bind(demand(uid, "main "+name))
			k.world.allocate(name, "a=a.example/gpu:1")
			k.world.reserve(name, uid)
			work.Go(func() {
				if _, _, err := k.server.prepare(t.Context(), hold, &drav1.Claim{Namespace: "default", Name: name, Uid: "uid-" + name}); err == nil {
					t.Error("a claim is prepared without its device")
				}
			})
		}
		for range while / change {
			time.Sleep(change)
			k.devices.serve(device.Container{Pod: "another", Name: "main"})
		}
		synctest.Wait()
		n := k.files.asked
		end()
		work.Wait()
		const least = look + lookShare*claims*look // from one look of a claim to the next
		if most, fewest := claims*int(while/least+1), claims*int(while/(least+change)); n > most || n < fewest {
			t.Errorf("%d looks of %v in %v; want %d to %d", n, look, while, fewest, most)
		}
	})
}

func TestServer_DevicesComeLater_AnswerIsHeldForThem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := newServer(t, 5*time.Minute)
		k.world.list(gpu, "1")
		k.world.allocate("c", "a=a.example/gpu:1")
		k.world.reserve("c", "p")
		answered := make(chan string, 1)
		go func() { answered <- k.prepare("c") }()
		synctest.Wait() // the pod is not known yet
		k.claims.Bind(demand("p", "main c"))
		synctest.Wait()
		if len(answered) > 0 {
			t.Fatalf("answered at once: %s", <-answered)
		}
		k.devices.serve(device.Container{Pod: "p", Name: "main"})
		if got := <-answered; got != "a=n1/a.example/gpu/0:1" {
			t.Error(got)
		}
	})
}

// The kubelet had a claim prepared before devmgrd started, and its files are missing: they are written, also if that fails at first.
func TestServer_FilesAreMissing_AreWritten(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	k.files.mu.Lock()
	k.files.fails = errors.New("the disk is full")
	k.files.mu.Unlock()
	k.world.list(gpu, "1")
	k.world.allocate("c", "a=a.example/gpu:1")
	k.world.reserve("c", "p")
	k.claims.Bind(demand("p", "main c"))
	k.devices.serve(device.Container{Pod: "p", Name: "main"})
	plugintest.Eventually(t, "the write has failed", func() bool {
		k.files.mu.Lock()
		defer k.files.mu.Unlock()
		if k.files.failed {
			k.files.fails = nil
		}
		return k.files.failed
	})
	plugintest.Eventually(t, "they are written", func() bool {
		k.files.mu.Lock()
		defer k.files.mu.Unlock()
		return k.files.claims["uid-c"] != nil && k.files.untold
	})
}

func TestServer_DevicesDoNotCome_ErrorHasTheReason(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, 10*time.Millisecond)
	k.world.allocate("c", "a=a.example/gpu:1")
	k.world.reserve("c", "p")
	k.world.allocate("unknown", "a=a.example/gpu:1")
	k.world.reserve("unknown", "elsewhere")
	k.claims.Bind(demand("p", "main c"))
	for claim, want := range map[string]string{
		"c":       "PluginMissing: no device plugin has registered",
		"unknown": "UnknownPod: no pod of this node is known",
		"gone":    "reading ResourceClaim default/gone: it does not exist",
	} {
		if got := k.prepare(claim); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", claim, got, want)
		}
	}
}

// A claim with devices of the driver that no container is known to use is never ready: if devmgrd has missed a use, a container would start without
// its devices.
func TestServer_NoContainerUsesTheClaim_IsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		results []string
		pod     device.PodDemand
		want    string
	}{
		"no container":                {[]string{"a=a.example/gpu:1"}, demand("p"), "NoClaim: no container of pod default/p uses the devices of devmgrd.io in ResourceClaim c"},
		"another request":             {[]string{"a=a.example/gpu:1", "other:b=a.example/gpu:1"}, demand("p", "main c/b"), "NoClaim: no container"},
		"devices of another driver":   {[]string{"other:a=a.example/gpu:1"}, demand("p", "main c"), ""},
		"one container, and not both": {[]string{"a=a.example/gpu:1", "other:b=a.example/gpu:1"}, demand("p", "side c/b", "main c/a"), "a=n1/a.example/gpu/0:1"},
	} {
		k := newKubelet(t, time.Millisecond)
		k.world.list(gpu, "1")
		k.world.allocate("c", c.results...)
		k.claims.Bind(c.pod)
		k.devices.serve(device.Container{Pod: "p", Name: "main"})
		if got := k.prepare("c"); got != c.want && (c.want == "" || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// The claim is read within the kubelet's time, not within that for which the answer is held.
func TestServer_HoldOfZero_ReadyClaimIsAnswered(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, 0)
	k.world.list(gpu, "1")
	k.world.allocate("c", "a=a.example/gpu:1")
	k.claims.Bind(demand("p", "main c"))
	if got := k.prepare("c"); !strings.HasPrefix(got, "PluginMissing") {
		t.Errorf("not ready: %q", got)
	}
	k.devices.serve(device.Container{Pod: "p", Name: "main"})
	if got := k.prepare("c"); got != "a=n1/a.example/gpu/0:1" {
		t.Errorf("ready: %q", got)
	}
}

// A file is in the way of the kubelet's directory plugins_registry for a while.
func TestServer_DirectoryCannotBeMade_IsTriedAgain(t *testing.T) {
	t.Parallel()
	_, claims := newWorld(t)
	dir := t.TempDir()
	registry := filepath.Join(dir, "plugins_registry")
	if err := os.WriteFile(registry, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := NewServer(ServerConfig{
		RegistryDir: registry, PluginsDir: filepath.Join(dir, "plugins"), Claims: claims, Allocator: &readiness{updated: make(chan struct{})}, Hold: time.Second,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	defer func() { stop(); <-ended }()
	plugintest.Eventually(t, "the directory cannot be made", func() bool { return s.Check() != nil })
	if err := s.Check(); !strings.Contains(err.Error(), "not a directory") {
		t.Errorf("while it cannot be made: %v", err)
	}
	if err := os.Remove(registry); err != nil {
		t.Fatal(err)
	}
	conn := plugintest.Client(t, Sockets(registry, s.PluginsDir)[1])
	if _, err := registration.NewRegistrationClient(conn).GetInfo(t.Context(), &registration.InfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
}

func TestServer_Sockets_AreTheOwnersOnly(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	for _, path := range Sockets(k.server.RegistryDir, k.server.PluginsDir) {
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

func TestServer_Check_FollowsTheKubelet(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	for _, step := range []struct {
		status *registration.RegistrationStatus
		want   string
	}{
		{&registration.RegistrationStatus{PluginRegistered: true}, ""},
		{&registration.RegistrationStatus{Error: "another driver has the name"}, "another driver has the name"},
		{&registration.RegistrationStatus{PluginRegistered: true}, ""},
	} {
		if _, err := k.registry.NotifyRegistrationStatus(t.Context(), step.status); err != nil {
			t.Fatal(err)
		}
		switch err := k.server.Check(); {
		case step.want == "" && err != nil:
			t.Error(err)
		case step.want != "" && (err == nil || !strings.Contains(err.Error(), step.want)):
			t.Errorf("got %v, want %q", err, step.want)
		}
	}
}

// A kubelet that is down, or slow, does not keep devmgrd from being ready; one that does not register the driver is reported.
func TestServer_Check_SilentKubelet_IsReported(t *testing.T) {
	t.Parallel()
	_, claims := newWorld(t)
	dir := t.TempDir()
	var log bytes.Buffer
	s := NewServer(ServerConfig{
		RegistryDir: filepath.Join(dir, "plugins_registry"), PluginsDir: filepath.Join(dir, "plugins"), Claims: claims, Allocator: &readiness{updated: make(chan struct{})}, Hold: time.Second,
		Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.NewRegistry(),
	})
	if err := s.Check(); err != nil {
		t.Errorf("at the start: %v", err)
	}
	s.registerTime = 300 * time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := registration.NewRegistrationClient(plugintest.Client(t, Sockets(s.RegistryDir, s.PluginsDir)[1]))
	plugintest.Eventually(t, "the kubelet's silence is reported", func() bool { return s.Check() == errNotRegistered })
	if _, err := client.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true}, grpc.WaitForReady(true)); err != nil {
		t.Error(err)
	}
	if err := s.Check(); err != nil {
		t.Errorf("when the kubelet has registered the driver: %v", err)
	}
	stop()
	<-ended
	if n := strings.Count(log.String(), "kubelet has not registered the DRA driver; waiting"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
}

func TestServer_Health_IsReportedAtEachChange(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	stream, err := k.health.NodeWatchResources(t.Context(), &health.NodeWatchResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func() map[string]string {
		t.Helper()
		answer, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]string{}
		for _, d := range answer.Devices {
			if again := int64(healthAgain / time.Second); d.HealthCheckTimeoutSeconds < 2*again {
				t.Errorf("the report lapses after %d s, and is repeated after %d s", d.HealthCheckTimeoutSeconds, again)
			}
			all[d.Device.PoolName+":"+d.Device.DeviceName] = d.Health.String() + " " + d.Message
		}
		return all
	}
	if got := next(); len(got) > 0 {
		t.Errorf("at first: %v", got)
	}
	k.world.list(gpu, "1", "2")
	k.world.allocate("c", "a=a.example/gpu:1")
	k.claims.Bind(demand("p", "main c"))
	if got, want := next(), map[string]string{"n1/a.example/gpu/0:1": "HEALTHY "}; !maps.Equal(got, want) {
		t.Errorf("with a pod: %v", got)
	}
	k.world.list(gpu, "2")
	if got, want := next(), map[string]string{"n1/a.example/gpu/0:1": "UNKNOWN its device plugin does not list it"}; !maps.Equal(got, want) {
		t.Errorf("not listed: %v", got)
	}
	k.claims.Drop("p")
	if got := next(); len(got) > 0 {
		t.Errorf("in the end: %v", got)
	}
}

// The kubelet believes a report for a while only, so it is repeated. Kubernetes 1.37 calls the service v1.
func TestServer_Health_IsRepeatedInEachVersion(t *testing.T) {
	t.Parallel()
	k := newKubelet(t, time.Minute)
	k.server.healthAgain = time.Millisecond
	info, err := k.registry.GetInfo(t.Context(), &registration.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	conn := plugintest.Client(t, info.Endpoint)
	for _, service := range []string{"v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"} {
		if !slices.Contains(info.SupportedVersions, service) {
			t.Errorf("the kubelet is offered %q", info.SupportedVersions)
		}
		stream, err := conn.NewStream(t.Context(), &health.DRAResourceHealth_ServiceDesc.Streams[0], "/"+service+"/NodeWatchResources")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(&health.NodeWatchResourcesRequest{}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := stream.RecvMsg(&health.NodeWatchResourcesResponse{}); err != nil {
				t.Errorf("%s: %v", service, err)
			}
		}
	}
}

// A claim whose pod has its devices, over real sockets; the API server is in memory.
func BenchmarkPrepare(b *testing.B) {
	k := newKubelet(b, time.Minute)
	k.world.list(gpu, "1", "2")
	k.world.allocate("c", "a=a.example/gpu:2")
	k.world.reserve("c", "p")
	k.claims.Bind(demand("p", "main c"))
	k.devices.serve(device.Container{Pod: "p", Name: "main"})
	for b.Loop() {
		if got := k.prepare("c"); got != "a=n1/a.example/gpu/0:2" {
			b.Fatal(got)
		}
	}
}
