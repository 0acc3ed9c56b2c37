package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestRegister(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu,
		plugintest.Dev("b", "Healthy", 1, 0, 1), plugintest.Dev("a", "healthy"), plugintest.Dev("c", "Healthy", -1))
	p.Options.PreStartRequired = true
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.serves("a", "b", "c"))

	o := f.offer()
	if !o.PreStart {
		t.Error("PreStart is not told, though the options call says so")
	}
	if d := o.Inventory.Devices; d[0].Healthy || !d[1].Healthy || fmt.Sprint(d[0].NUMA, d[1].NUMA, d[2].NUMA) != "[] [0 1] []" {
		t.Errorf("inventory = %+v", d)
	}
	if n := p.Calls(plugintest.GetOptions); n != 1 {
		t.Errorf("options were asked for %d times, want once", n)
	}
	if first := p.Requests()[0].Method; first != plugintest.GetOptions {
		t.Errorf("the first call was %s", first)
	}
	if authority := p.Requests()[0].Metadata.Get(":authority"); len(authority) != 1 || authority[0] != "localhost" {
		t.Errorf(":authority = %q", authority)
	}
	f.eventually("it is remembered", func() bool {
		r, ok := f.memory.last()
		return ok && r.Endpoint == p.Endpoint && r.Reported && len(r.Devices) == 3
	})
	if f.metric("device_plugin_registration_total", gpu) != 1 || f.metric("devmgrd_plugin_up", gpu) != 1 {
		t.Error("metrics do not tell of one registration and one plugin that is up")
	}
	select {
	case <-f.Changed():
	default:
		t.Error("Changed says nothing")
	}
}

// The options in the request do not count: only the plugin's answer does.
func TestRegisterIgnoresOptionsInRequest(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.Serve()
	if err := p.RegisterAs(&plugintest.RegisterRequest{Version: "v1beta1", Endpoint: p.Endpoint, ResourceName: gpu,
		Options: &plugintest.Options{PreStartRequired: true}}); err != nil {
		t.Fatal(err)
	}
	if f.offer().PreStart {
		t.Error("the request's options were taken")
	}
}

// devmgrd waits for a plugin that registers before it listens, and for a slow one, up to a limit.
func TestRegister_PluginDoesNotAnswer_IsRefused(t *testing.T) {
	t.Parallel()
	f := prepare(t)
	f.SetRegisterTimeout(time.Second) // also for the plugins' connections
	f.run()
	listen := func(name string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.dir, name), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	defer listen("mute.sock").Close() // it takes connections and says nothing
	left := listen("left.sock")
	left.SetUnlinkOnClose(false)
	left.Close()
	var all sync.WaitGroup
	for endpoint, says := range map[string]string{
		"none.sock": `there is no socket "none.sock" in the plugin directory; the plugin must listen there before it registers`,
		"left.sock": "connection refused",
		"mute.sock": "does not answer",
	} {
		all.Go(func() {
			p := plugintest.New(t, f.dir, gpu)
			p.Endpoint = endpoint
			if err := p.Register(); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v, want %q", endpoint, err, says)
			}
		})
	}
	all.Wait()
	hung := plugintest.New(t, f.dir, gpu)
	hung.Before(plugintest.GetOptions, plugintest.Hang)
	hung.Serve()
	if err := hung.Register(); err == nil || len(f.Offers()) != 0 {
		t.Errorf("one that does not tell its options: %v, %v", err, f.Offers())
	}
}

func TestRegister_ManyAreRefused_LogHasALimit(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu)
	p.Endpoint = "../x"
	for range 100 {
		if p.Register() == nil {
			t.Fatal("it is accepted")
		}
	}
	if n := f.logs.count("level=WARN msg=\"registration refused\""); n < 32 || n > 40 {
		t.Errorf("%d lines for 100 refused registrations, want 32 and one each 10 s", n)
	}
}

func TestRegisterRefused(t *testing.T) {
	t.Parallel()
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 2 })
	f.run()
	first := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the first plugin serves", f.servesNumber(2))

	bad := plugintest.New(t, f.dir, "vendor.example/bad")
	bad.Before(plugintest.GetOptions, plugintest.Fail("the card is on fire"))
	bad.Serve()
	outside := plugintest.New(t, socketDir(t), gpu)
	outside.Serve()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(f.dir, "file.sock"), nil, 0o600))
	must(os.Symlink(outside.Socket(), filepath.Join(f.dir, "outside.sock")))
	must(os.Symlink("kubelet.sock", filepath.Join(f.dir, "self.sock")))

	for _, c := range []struct {
		name, version, resource, endpoint string
		code                              codes.Code
		says                              []string
	}{
		{"version", "v1alpha1", gpu, first.Endpoint, codes.InvalidArgument, []string{`"v1alpha1"`, "supported: v1beta1"}},
		{"no version", "", gpu, first.Endpoint, codes.InvalidArgument, []string{"supported: v1beta1"}},
		{"name", "v1beta1", "gpu", first.Endpoint, codes.InvalidArgument, []string{"no slash", "vendor.example/gpu"}},
		{"native name", "v1beta1", "kubernetes.io/gpu", first.Endpoint, codes.InvalidArgument, []string{"reserved for Kubernetes"}},
		{"no endpoint", "v1beta1", gpu, "", codes.InvalidArgument, []string{"without a path"}},
		{"path", "v1beta1", gpu, "../" + outside.Endpoint, codes.InvalidArgument, []string{"without a path"}},
		{"dots", "v1beta1", gpu, "..", codes.InvalidArgument, []string{"without a path"}},
		{"our own socket", "v1beta1", gpu, "kubelet.sock", codes.InvalidArgument, []string{"a socket of its own"}},
		{"link to our own socket", "v1beta1", gpu, "self.sock", codes.FailedPrecondition, []string{"our own kubelet.sock"}},
		{"link that leaves", "v1beta1", gpu, "outside.sock", codes.FailedPrecondition, []string{outside.Socket(), "out of the socket directory"}},
		{"file", "v1beta1", gpu, "file.sock", codes.FailedPrecondition, []string{"is not a socket"}},
		{"options fail", "v1beta1", gpu, bad.Endpoint, codes.FailedPrecondition, []string{"failed to get device plugin options", "the card is on fire"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := f.offer()
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			err := plugintest.Register(ctx, f.dir, &plugintest.RegisterRequest{Version: c.version, Endpoint: c.endpoint, ResourceName: c.resource})
			if status.Code(err) != c.code {
				t.Errorf("code = %s, want %s (%v)", status.Code(err), c.code, err)
			}
			for _, part := range c.says {
				if !strings.Contains(status.Convert(err).Message(), part) {
					t.Errorf("message %q does not say %q", status.Convert(err).Message(), part)
				}
			}
			after := f.offer()
			if len(f.Offers()) != 1 || after.State != device.Serving || &after.Inventory.Devices[0] != &before.Inventory.Devices[0] {
				t.Errorf("the refusal has changed something: %+v", f.Offers())
			}
			if f.metric("device_plugin_registration_total", gpu) != 1 {
				t.Error("a refused registration was counted")
			}
		})
	}

	t.Run("too many resources", func(t *testing.T) {
		plugintest.Start(t, f.dir, "vendor.example/second")
		third := plugintest.New(t, f.dir, "vendor.example/third")
		third.Serve()
		err := third.Register()
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "plugins.maxResources (2)") {
			t.Errorf("err = %v", err)
		}
		first.MustRegister() // who is known already is still welcome
		if f.metric("device_plugin_registration_total", "vendor.example/third") != -1 {
			t.Error("a refused name has got a series")
		}
	})
	f.eventually("one stream is left", func() bool { return first.Streams() == 1 })
	first.SetHealth("dev-000001", plugintest.Unhealthy)
	f.eventually("the first plugin is still heard", func() bool { return !f.offer().Inventory.Devices[1].Healthy })
}

// A fakeLedger forgets resources that are not in use.
type fakeLedger struct {
	*registry.Registry
	cordoned, suspended, used, requested device.ResourceName
	fail                                 error
}

func (l *fakeLedger) Uses([]device.ResourceName) map[device.ResourceName]device.Use {
	return map[device.ResourceName]device.Use{l.used: device.Kept, l.cordoned: device.Kept, l.requested: device.Requested, l.suspended: device.HasSuspended}
}

func (l *fakeLedger) Displace(r device.ResourceName) error {
	if l.fail != nil {
		return l.fail
	}
	if r == l.used {
		return &device.InUseError{Resource: r, Pods: []device.Pod{pod}}
	}
	return l.Registry.Forget(r)
}

// The resource that has been lost for the longest time makes room for a new one, unless it is in use or cordoned. One with a suspended
// device makes room if there is no other.
func TestLostResourceMakesRoom(t *testing.T) {
	t.Parallel()
	lost := func(name string, away time.Duration) device.PluginRecord {
		return device.PluginRecord{Resource: device.ResourceName("vendor.example/" + name), Endpoint: name + ".sock", Reported: true, Away: time.Now().Add(-away), Lost: true}
	}
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 6 }, known(
		lost("suspended", 5*time.Hour), lost("younger", time.Hour), lost("older", 2*time.Hour), lost("used", 3*time.Hour), lost("cordoned", 4*time.Hour),
		device.PluginRecord{Resource: "vendor.example/stale", Reported: true},
	))
	ledger := &fakeLedger{Registry: f.Registry, cordoned: "vendor.example/cordoned", suspended: "vendor.example/suspended", used: "vendor.example/used", fail: errors.New("not yet")}
	f.with.Allocator = ledger
	f.run()
	has := func(names ...string) {
		t.Helper()
		var got []string
		for r := range f.Offers() {
			got = append(got, strings.TrimPrefix(string(r), "vendor.example/"))
		}
		slices.Sort(got)
		if !slices.Equal(got, names) {
			t.Errorf("known are %v, want %v", got, names)
		}
	}
	register := func(name string) error {
		p := plugintest.New(t, f.dir, "vendor.example/"+name, plugintest.Devices(1)...)
		p.Serve()
		return p.Register()
	}
	if err := register("early"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("before the ledger can tell what is in use: %v", err)
	}
	ledger.fail = nil
	for i, want := range [][]string{
		{"cordoned", "new-0", "stale", "suspended", "used", "younger"},
		{"cordoned", "new-0", "new-1", "stale", "suspended", "used"},
		{"cordoned", "new-0", "new-1", "new-2", "stale", "used"},
	} {
		if err := register(fmt.Sprintf("new-%d", i)); err != nil {
			t.Errorf("new-%d: %v", i, err)
		}
		has(want...)
	}
	if err := register("new-3"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("none is lost and unused: %v", err)
	}
	has("cordoned", "new-0", "new-1", "new-2", "stale", "used")
	if got, want := fmt.Sprint(f.memory.forgotten), "[vendor.example/older vendor.example/younger vendor.example/suspended]"; got != want {
		t.Errorf("forgotten are %s, want %s", got, want)
	}
}

// Some plugins register a moment before they listen; the kubelet waits for them, and so do we.
func TestRegisterBeforeServing(t *testing.T) {
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	registered := make(chan error, 1)
	go func() { registered <- p.Register() }()
	f.eventually("Register waits for the next try, or returns", func() bool {
		return stacks(t, `goroutine \d+ \[select.*\]:\n.*\.connectBack\(`) || len(registered) > 0
	})
	p.Serve()
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	f.eventually("the plugin serves", f.servesNumber(1))
}

func TestRegisterThroughLinkInside(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.Serve()
	if err := os.Symlink(p.Endpoint, filepath.Join(f.dir, "link.sock")); err != nil {
		t.Fatal(err)
	}
	if err := p.RegisterAs(&plugintest.RegisterRequest{Version: "v1beta1", Endpoint: "link.sock", ResourceName: gpu}); err != nil {
		t.Fatal(err)
	}
	f.eventually("the plugin serves", f.servesNumber(1))
}

// A new plugin takes over without a gap, and what the old one does afterwards touches nothing.
func TestRegisterAgain(t *testing.T) {
	t.Parallel()
	f := start(t)
	old := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the old plugin serves", f.servesNumber(3))

	list := make(chan struct{})
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Dev("new", plugintest.Healthy))
	fresh.Endpoint = "fresh.sock"
	fresh.Before(plugintest.ListAndWatch, plugintest.HoldUntil(list))
	fresh.Serve()
	fresh.MustRegister()

	// The old plugin serves until the new one has listed its devices.
	if !f.servesNumber(3)() {
		t.Errorf("there is a gap: %+v", f.offer())
	}
	if _, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"}); err != nil {
		t.Error(err)
	}
	if old.Calls(plugintest.Allocate) != 1 || fresh.Calls(plugintest.Allocate) != 0 {
		t.Error("Allocate did not go to the old plugin")
	}
	old.Set(plugintest.Devices(7)...)
	f.eventually("the old plugin is heard", f.servesNumber(7))
	close(list)
	f.eventually("the new plugin serves", f.serves("new"))
	old.Stop()
	if !f.serves("new")() || f.logs.count("plugin disconnected") != 0 {
		t.Error("the old plugin's end was noticed")
	}
	if n := f.metric("device_plugin_registration_total", gpu); n != 2 {
		t.Errorf("%v registrations, want 2", n)
	}
}

func TestRegisterSameSocketTwice(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	for range 5 {
		p.MustRegister()
	}
	f.eventually("one stream is left, and it serves", func() bool { return p.Streams() == 1 && f.servesNumber(2)() })
	p.SetHealth("dev-000000", plugintest.Unhealthy)
	f.eventually("the stream is heard", func() bool { return !f.offer().Inventory.Devices[0].Healthy })
	if f.logs.count("plugin disconnected") != 0 {
		t.Error("there was a gap")
	}
}

// A registration that takes long to check does not replace one that came later.
func TestRegisterNewestWins(t *testing.T) {
	t.Parallel()
	f := start(t)
	gate := make(chan struct{})
	slow := plugintest.New(t, f.dir, gpu, plugintest.Dev("slow", plugintest.Healthy))
	slow.Endpoint = "slow.sock"
	slow.Before(plugintest.GetOptions, plugintest.HoldUntil(gate))
	slow.Serve()
	registered := make(chan error, 1)
	go func() { registered <- slow.Register() }()
	plugintest.Eventually(t, "the slow plugin is asked", func() bool { return slow.Calls(plugintest.GetOptions) == 1 })

	fast := plugintest.New(t, f.dir, gpu, plugintest.Dev("fast", plugintest.Healthy))
	fast.Endpoint = "fast.sock"
	fast.Serve()
	fast.MustRegister()
	f.eventually("the fast plugin serves", f.serves("fast"))
	close(gate)
	if err := <-registered; err != nil {
		t.Errorf("the slow plugin was refused: %v", err)
	}
	if !f.serves("fast")() {
		t.Errorf("offer = %+v", f.offer())
	}
}

// A plugin that starts again under another resource name and on the same socket is not heard under both.
func TestRegisterOtherResourceOnSameSocket(t *testing.T) {
	t.Parallel()
	const old, fresh = "intel.example/vf", "openshift.example/vf"
	for name, restart := range map[string]bool{"after a restart": true, "while it serves": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t, grace(300*time.Millisecond))
			serving := func(resource device.ResourceName, n int) func() bool {
				return func() bool {
					o := f.Offers()[resource]
					return o.State == device.Serving && o.Reported && len(o.Inventory.Devices) == n
				}
			}
			p := plugintest.New(t, f.dir, old, plugintest.Devices(3)...)
			p.Endpoint = "vf.sock"
			p.Serve()
			p.MustRegister()
			f.eventually("the old resource is served", serving(old, 3))
			if restart {
				p.Stop()
			}
			p.Resource = fresh
			if restart {
				p.Serve()
			}
			p.MustRegister()
			if f.Offers()[old].State == device.Serving {
				t.Error("the old resource is still offered")
			}
			_, err := f.Allocate(t.Context(), pod, container, old, []device.ID{"dev-000000"})
			if refusal := new(device.Refusal); !errors.As(err, &refusal) || p.Calls(plugintest.Allocate) != 0 {
				t.Errorf("Allocate under the old name: %v", err)
			}
			f.eventually("the new resource is served", serving(fresh, 3))
			f.eventually("the old resource is lost", func() bool { return f.Offers()[old].State == device.Lost })
			f.eventually("one stream is left", func() bool { return p.Streams() == 1 })
			f.eventually("the state file knows whose socket it is", func() bool {
				was, _ := f.memory.lastOf(old)
				is, _ := f.memory.lastOf(fresh)
				return was.Reported && was.Endpoint == "" && is.Endpoint == "vf.sock"
			})
			if f.metric("devmgrd_plugin_up", old) != 0 || f.logs.count("socket taken from another resource") != 1 {
				t.Error("metric and log do not tell of it")
			}
			// A later list belongs to the new resource alone, and another plugin may register the old resource.
			p.Set(plugintest.Devices(4)...)
			f.eventually("the new resource's list is heard", serving(fresh, 4))
			if n := len(f.Offers()[old].Inventory.Devices); n != 3 {
				t.Errorf("the old resource has %d devices", n)
			}
			other := plugintest.Start(t, f.dir, old, plugintest.Devices(1)...)
			f.eventually("both are served", func() bool { return serving(old, 1)() && serving(fresh, 4)() })
			other.Stop()
		})
	}
}

// Of two registrations of one socket the newer one has it, even if the older one takes longer to be checked.
func TestRegisterSameSocketNewestWins(t *testing.T) {
	t.Parallel()
	const old, fresh = "vendor.example/old", "vendor.example/fresh"
	f := start(t)
	p := plugintest.New(t, f.dir, old, plugintest.Devices(1)...)
	gate := make(chan struct{})
	p.Before(plugintest.GetOptions, plugintest.HoldUntil(gate))
	p.Serve()
	registered := make(chan error, 1)
	slow := &plugintest.RegisterRequest{Version: "v1beta1", Endpoint: p.Endpoint, ResourceName: old}
	go func() { registered <- p.RegisterAs(slow) }()
	f.eventually("the slow one is asked", func() bool { return p.Calls(plugintest.GetOptions) == 1 })
	p.Before(plugintest.GetOptions, nil)
	p.Resource = fresh
	p.MustRegister()
	close(gate)
	if err := <-registered; err != nil {
		t.Errorf("the slow one was refused: %v", err)
	}
	f.eventually("the new resource is served", func() bool { return f.Offers()[fresh].Reported })
	if o := f.Offers(); len(o) != 1 || o[fresh].State != device.Serving {
		t.Errorf("offers = %+v", o)
	}
}

// Records that share a socket do not say whose it is: it is not dialled before a plugin says so.
func TestKnownResourcesWithOneSocket(t *testing.T) {
	t.Parallel()
	const one, two = "vendor.example/one", "vendor.example/two"
	dir := socketDir(t)
	p := plugintest.New(t, dir, two, plugintest.Devices(2)...)
	p.Endpoint = "same.sock"
	p.Serve()
	f := start(t, at(dir), grace(100*time.Millisecond), known(
		device.PluginRecord{Resource: one, Endpoint: "same.sock", Reported: true, Devices: []device.Device{{ID: "a"}}},
		device.PluginRecord{Resource: two, Endpoint: "same.sock", Reported: true, Devices: []device.Device{{ID: "a"}}},
	))
	f.eventually("both are lost", func() bool {
		return f.Offers()[one].State == device.Lost && f.Offers()[two].State == device.Lost
	})
	if len(p.Requests()) != 0 {
		t.Errorf("it was dialled: %v", p.Requests())
	}
	p.MustRegister()
	f.eventually("one is served", func() bool { return f.Offers()[two].State == device.Serving })
	if f.Offers()[one].State != device.Lost {
		t.Error("the other is served too")
	}
	f.stop()
	was, _ := f.memory.lastOf(one)
	is, _ := f.memory.lastOf(two)
	if !was.Reported || was.Endpoint != "" || is.Endpoint != "same.sock" {
		t.Errorf("the state file says %+v and %+v", was, is)
	}

	// What has no socket is not dialled at the next start either.
	second := start(t, at(dir), known(was, is))
	second.eventually("one is served", func() bool { return second.Offers()[two].State == device.Serving })
	if second.Offers()[one].State != device.Lost || p.Streams() != 1 {
		t.Errorf("offers = %+v, %d streams", second.Offers(), p.Streams())
	}
}

func TestRejectDuplicates(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.RejectDuplicates = true })
	first := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	second := plugintest.New(t, f.dir, gpu)
	second.Endpoint = "second.sock"
	second.Serve()
	if err := second.Register(); status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), first.Endpoint) {
		t.Errorf("err = %v", err)
	}
	first.MustRegister()
	first.Stop()
	f.eventually("the first plugin is away", f.is(device.Stale))
	second.MustRegister()
}

// With reject, a plugin cannot take another one's socket by registering it under a second name, and then its resource.
func TestRejectDuplicates_SocketOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.RejectDuplicates = true })
	vendor := plugintest.Start(t, f.dir, gpu, plugintest.Devices(4)...)
	f.eventually("the vendor's plugin serves", f.servesNumber(4))
	thief := plugintest.New(t, f.dir, "cheap.example/gpu")
	thief.Endpoint = vendor.Endpoint
	if err := thief.Register(); status.Code(err) != codes.AlreadyExists || !strings.Contains(err.Error(), "serves "+string(gpu)) {
		t.Errorf("err = %v", err)
	}
	second := plugintest.New(t, f.dir, gpu)
	second.Endpoint = "evil.sock"
	second.Serve()
	if err := second.Register(); status.Code(err) != codes.AlreadyExists {
		t.Errorf("err = %v", err)
	}
	if !f.servesNumber(4)() || len(f.Offers()) != 1 {
		t.Errorf("offers are %v", f.Offers())
	}
	vendor.Stop()
	f.eventually("the vendor's plugin is away", f.is(device.Stale))
	renamed := plugintest.New(t, f.dir, "vendor.com/mig")
	renamed.Endpoint = vendor.Endpoint
	registered := make(chan struct{})
	renamed.Before(plugintest.ListAndWatch, plugintest.HoldUntil(registered)) // of the vendor's resource, for which devmgrd dials it first
	renamed.Serve()
	f.eventually("it is dialled", func() bool { return renamed.Calls(plugintest.ListAndWatch) > 0 })
	renamed.MustRegister()
	close(registered)
}

// The upstream end-to-end test of a plugin whose stream fails at once: the resource is there, with no devices, and the
// plugin is not called in a busy loop.
func TestStream_FailsAlways_OfferIsLost(t *testing.T) {
	t.Parallel()
	f := prepare(t)
	f.SetRefusePause(50 * time.Millisecond)
	f.run()
	p := plugintest.New(t, f.dir, gpu)
	p.Before(plugintest.ListAndWatch, plugintest.Fail("no list today"))
	p.Serve()
	p.MustRegister()
	f.eventually("the offer is stale, with no devices", func() bool {
		o := f.offer()
		return o.State == device.Stale && o.Reported && len(o.Inventory.Devices) == 0
	})
	f.eventually("it is dialled back", func() bool { return p.Calls(plugintest.ListAndWatch) >= 3 })
	if n := f.logs.count("plugin disconnected"); n != 1 {
		t.Errorf("%d log lines for one change of state", n)
	}
	p.Before(plugintest.ListAndWatch, nil)
	p.Set(plugintest.Devices(2)...)
	f.eventually("it serves when it has come to its senses", f.servesNumber(2))
}

// A plugin that registers and ends its first ListAndWatch itself is left alone for two minutes, as the kubelet leaves it alone for
// ever; one whose connection broke, and one that has listed before, are dialled at once.
func TestPausesBeforeDiallingBack(t *testing.T) {
	t.Parallel()
	refused := func(p *plugintest.Plugin) { p.Before(plugintest.ListAndWatch, plugintest.Fail("no list today")) }
	for name, c := range map[string]struct {
		plugin func(*plugintest.Plugin) // before it registers
		then   func(*plugintest.Plugin) // when it has
		rarely bool
	}{
		"its first list is refused": {plugin: refused, rarely: true},
		"it has listed before":      {then: func(p *plugintest.Plugin) { refused(p); p.EndStreams(nil) }},
		"the connection breaks":     {then: func(p *plugintest.Plugin) { p.Kill() }},
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			p := plugintest.New(t, f.dir, gpu)
			if c.plugin != nil {
				c.plugin(p)
			}
			p.Set(plugintest.Devices(1)...)
			p.Serve()
			p.MustRegister()
			if c.then != nil {
				f.eventually("it serves", f.servesNumber(1))
				c.then(p)
			}
			f.eventually("there is a pause", func() bool { return f.logs.count("redialling plugin") > 0 })
			if rarely := f.logs.count("wait=2m0s") > 0; rarely != c.rarely {
				t.Errorf("it is dialled rarely: %v\n%s", rarely, f.logs)
			}
		})
	}
}
