package registry_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const gpuRules = `
rules:
- name: gpu
  resources: [vendor.example/*]
  plugins:
  - namespace: kube-system
    serviceAccount: plugins
  grants:
    env: [GPU]
`

type silent struct{}

func (silent) NotAllowed(device.Pod, string) {}

// rules has the registry ask rules.
func rules(t testing.TB, text string, enforce bool) func(*registry.Config) {
	t.Helper()
	r, err := pluginrules.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	guard := pluginrules.New(pluginrules.Config{Rules: r, Enforce: enforce, Notifier: silent{}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	return func(c *registry.Config) { c.Rules = guard }
}

// directoryOf makes the directory of a plugin pod in some namespace.
func (f *harness) directoryIn(namespace, name string) device.PluginDir {
	f.t.Helper()
	pod := pluginPod(name)
	pod.Namespace = namespace
	dir, err := f.Directory(pod)
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// Only plugins that a rule names serve, and none of the others takes the resource from the one that does.
func TestRules_Registration(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), rules(t, gpuRules, true))
	f.with.Accounts = accounts{"a": "plugins", "other": "default", "tenant": "plugins", "unknown": ""}
	f.run()
	plugintest.Start(t, f.directory("a").Sockets, gpu, plugintest.Devices(2)...)
	f.eventually("the allowed one serves", f.servesNumber(2))
	for dir, want := range map[string]string{
		f.directory("other").Sockets:               "rule gpu does not let the plugin of pod kube-system/other (service account default) serve vendor.example/gpu",
		f.directoryIn("tenants", "tenant").Sockets: "rule gpu does not let the plugin of pod tenants/tenant",
		f.directory("unknown").Sockets:             "(service account not known)",
		f.dir:                                      "rule gpu does not let a plugin of the host serve vendor.example/gpu",
	} {
		p := plugintest.New(t, dir, gpu, plugintest.Devices(5)...)
		p.Serve()
		err := p.Register()
		if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	p := plugintest.New(t, f.directory("a").Sockets, "other.example/x", plugintest.Devices(1)...)
	p.Serve()
	if err := p.Register(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "no rule lets a plugin serve other.example/x") {
		t.Error(err)
	}
	if o := f.Offers(); len(o) != 1 || len(o[gpu].Inventory.Devices) != 2 || o[gpu].State != device.Serving || f.owner().Name != "a" {
		t.Errorf("offers are %+v", o)
	}
}

// A plugin that waits to be called hears why it may not serve.
func TestRules_WaitingPlugin(t *testing.T) {
	t.Parallel()
	f := start(t, watches(socketDir(t)), rules(t, gpuRules, true))
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.Serve()
	p.Announce(f.watched + "/reg.sock")
	f.eventually("it hears", func() bool { return len(p.Told()) > 0 })
	if result := p.Told()[0]; result.GetPluginRegistered() || !strings.Contains(result.GetError(), "rule gpu does not let a plugin of the host serve") {
		t.Errorf("notified %v", result)
	}
	if len(f.Offers()) > 0 {
		t.Error("it serves")
	}
}

func TestRules_Report_RefusesNothing(t *testing.T) {
	t.Parallel()
	f := start(t, rules(t, gpuRules, false))
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.OnAllocate = plugintest.Grants(&plugintest.Answer{Envs: map[string]string{"LD_PRELOAD": "x"}})
	p.Serve()
	p.MustRegister()
	f.eventually("it serves", f.servesNumber(1))
	if g, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"}); err != nil || g.Env["LD_PRELOAD"] != "x" {
		t.Error(g, err)
	}
}

// What a rule does not allow is refused when the plugin answers, with the rule's name.
func TestRules_Grant(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), rules(t, gpuRules, true))
	f.with.Accounts = accounts{"a": "plugins"}
	f.run()
	p := plugintest.New(t, f.directory("a").Sockets, gpu, plugintest.Devices(1)...)
	answer := &plugintest.Answer{Envs: map[string]string{"GPU": "0", "LD_PRELOAD": "x"}}
	p.OnAllocate = plugintest.Grants(answer)
	p.Serve()
	p.MustRegister()
	f.eventually("it serves", f.servesNumber(1))
	_, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"})
	wantRefusal(t, err, device.PluginNotAllowed, "rule gpu", "variable LD_PRELOAD")
	delete(answer.Envs, "LD_PRELOAD")
	if _, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"}); err != nil {
		t.Error(err)
	}
}

// latecomers are service accounts that only Fetch makes known, once there is an API server.
type latecomers struct {
	mu   sync.Mutex
	away bool
	has  string
}

func (l *latecomers) ServiceAccount(device.Pod) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.has
}

func (l *latecomers) Named(device.PodUID) (device.Pod, bool) { return device.Pod{}, false }

func (l *latecomers) Fetch(context.Context, device.Pod) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return errors.New("there is no API server")
	}
	l.has = "plugins"
	return nil
}

// The API server is asked for a service account that a rule depends on.
func TestRules_ServiceAccount_IsRead(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), rules(t, gpuRules, true))
	f.with.Accounts = &latecomers{}
	f.run()
	plugintest.Start(t, f.directory("a").Sockets, gpu, plugintest.Devices(1)...)
	f.eventually("it serves", f.servesNumber(1))
	if got := f.owner().ServiceAccount; got != "plugins" {
		t.Errorf("its service account is %q", got)
	}
}

// A plugin that registered before the rules is not dialled again automatically, and its devices are not allocated. A plugin whose
// service account is not known yet is dialled as soon as the account is known.
func TestRules_RememberedPlugin(t *testing.T) {
	t.Parallel()
	plugins := socketDir(t)
	sockets := socketDir(t)
	f := prepare(t, ownDirs(plugins), at(sockets))
	f.with.Accounts = &latecomers{away: true}
	f.run()
	plugintest.Start(t, f.directory("a").Sockets, gpu, plugintest.Devices(1)...)
	plugintest.Start(t, f.dir, "vendor.example/nic", plugintest.Devices(1)...)
	records := map[device.ResourceName]device.PluginRecord{}
	for _, r := range []device.ResourceName{gpu, "vendor.example/nic"} {
		f.eventually("it is recorded", func() bool { records[r], _ = f.memory.lastOf(r); return records[r].Reported })
	}
	f.stop()

	late := &latecomers{away: true}
	again := prepare(t, ownDirs(plugins), at(sockets), known(records[gpu], records["vendor.example/nic"]), rules(t, gpuRules, true))
	again.with.Accounts = late
	again.run()
	again.eventually("both are barred", func() bool {
		o := again.Offers()
		return strings.Contains(o[gpu].LastError, "service account not known") && strings.Contains(o["vendor.example/nic"].LastError, "rule gpu does not let a plugin of the host")
	})
	late.mu.Lock()
	late.away = false
	late.mu.Unlock()
	again.eventually("the pod's plugin serves", again.servesNumber(1))
	if o := again.Offers()["vendor.example/nic"]; o.State == device.Serving {
		t.Error("the host's plugin serves")
	}
}
