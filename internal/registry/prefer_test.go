package registry_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Prefer sends one container request with all that is known of the container. It returns the plugin's answer unchanged, even with
// IDs that were not in the request.
func TestPrefer(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(4)...)
	p.Options.GetPreferredAllocationAvailable = true
	p.OnPrefer = func(context.Context, *plugintest.PreferredRequest) (*plugintest.PreferredResponse, error) {
		return prefers("dev-000003", "bogus", "dev-000003", ""), nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(4))
	if !f.offer().Prefers {
		t.Error("the offer does not say that the plugin has preferences")
	}
	available, must := []device.ID{"dev-000001", "dev-000002", "dev-000003"}, []device.ID{"dev-000002"}
	got, err := f.Prefer(t.Context(), pod, container, gpu, available, must, 2)
	if err != nil || !slices.Equal(got, []device.ID{"dev-000003", "bogus", "dev-000003", ""}) {
		t.Errorf("got %q, %v", got, err)
	}
	requests := p.Requests()
	last := requests[len(requests)-1]
	if last.Method != plugintest.Preferred || last.Size != 2 || !slices.Equal(last.Must, []string{"dev-000002"}) ||
		!slices.Equal(last.Available, []string{"dev-000001", "dev-000002", "dev-000003"}) || last.Metadata.Get("devmgrd-pod-uid")[0] != "uid-1" {
		t.Errorf("request = %+v", last)
	}
}

func prefers(ids ...string) *plugintest.PreferredResponse {
	return &plugintest.PreferredResponse{ContainerResponses: []*plugintest.PreferredAnswer{{DeviceIDs: ids}}}
}

// The offer follows the options of the plugin that serves, as it does for PreStart.
func TestPrefersFollowsThePlugin(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.Options.GetPreferredAllocationAvailable = true
	p.Serve()
	p.MustRegister()
	f.eventually("the first plugin serves", f.servesNumber(1))
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	fresh.Endpoint, fresh.Options.PreStartRequired = "fresh.sock", true
	fresh.Serve()
	fresh.MustRegister()
	f.eventually("the second plugin serves", func() bool { o := f.offer(); return !o.Prefers && o.PreStart && len(o.Inventory.Devices) == 2 })
	p.Stop()
	f.eventually("the first is forgotten", func() bool { return len(f.Registrations()[gpu].Reserve) == 0 })
	fresh.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	fresh.Options = &plugintest.Options{GetPreferredAllocationAvailable: true}
	fresh.Serve() // and is dialled back
	f.eventually("it is back with other options", func() bool { o := f.offer(); return o.State == device.Serving && o.Prefers && !o.PreStart })
}

func TestPreferAnswers(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.MaxDevices = 3 })
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	var answer atomic.Pointer[plugintest.PreferredResponse]
	p.OnPrefer = func(context.Context, *plugintest.PreferredRequest) (*plugintest.PreferredResponse, error) {
		return answer.Load(), nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	long := strings.Repeat("x", 1024)
	for name, c := range map[string]struct {
		answer *plugintest.PreferredResponse
		says   string // empty: it is taken
	}{
		"nothing":        {prefers(), ""},
		"as many as may": {prefers("a", "b", long), ""},
		"no container":   {&plugintest.PreferredResponse{}, "answers for 0 containers and was asked for 1"},
		"two containers": {&plugintest.PreferredResponse{ContainerResponses: []*plugintest.PreferredAnswer{{}, {}}}, "answers for 2 containers and was asked for 1"},
		"too many":       {prefers("a", "b", "c", "d"), "plugins.maxDevices allows 3"},
		"too long":       {prefers("a", long+"x"), "deviceIDs[1]: an ID of 1025 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			answer.Store(c.answer)
			got, err := f.Prefer(t.Context(), pod, container, gpu, nil, nil, 1)
			if c.says == "" {
				if err != nil || len(got) != len(c.answer.ContainerResponses[0].DeviceIDs) {
					t.Errorf("got %q, %v", got, err)
				}
				return
			}
			wantRefusal(t, err, device.PluginError, "GetPreferredAllocation", c.says)
			if got != nil {
				t.Errorf("%q comes with the error", got)
			}
		})
	}
}

func TestPreferRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.PreferredTimeout = time.Second })
	ask := func() error {
		_, err := f.Prefer(t.Context(), pod, container, gpu, nil, nil, 1)
		return err
	}
	wantRefusal(t, ask(), device.PluginMissing)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Before(plugintest.Preferred, plugintest.Fail("no opinion"))
	wantRefusal(t, ask(), device.PluginError, "GetPreferredAllocation", "no opinion")
	p.Before(plugintest.Preferred, plugintest.Hang)
	wantRefusal(t, ask(), device.PluginSlow, "GetPreferredAllocation", "1s")
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	wantRefusal(t, ask(), device.PluginStale)
}

// It is asked one thing at a time, whatever that is.
func TestPreferTakesItsTurn(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	var inside, most atomic.Int32
	enter := func() func() {
		if n := inside.Add(1); n > most.Load() {
			most.Store(n)
		}
		return func() { inside.Add(-1) }
	}
	p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		defer enter()()
		return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{}}}, nil
	}
	p.OnPrefer = func(context.Context, *plugintest.PreferredRequest) (*plugintest.PreferredResponse, error) {
		defer enter()()
		return prefers(), nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	var calls sync.WaitGroup
	for range 30 {
		calls.Go(func() {
			if _, err := f.Allocate(context.Background(), pod, container, gpu, nil); err != nil {
				t.Error(err)
			}
		})
		calls.Go(func() {
			if _, err := f.Prefer(context.Background(), pod, container, gpu, nil, nil, 1); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if most.Load() != 1 {
		t.Errorf("%d calls at the same time", most.Load())
	}
}
