package registry_test

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// What the kubelet's own tests ask of a device manager.

// The plugin is asked once, hears why it was refused in the kubelet's words, and nothing is offered.
func TestOptionsFail(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	p.Before(plugintest.GetOptions, plugintest.Fail("GetDevicePluginOptions failed"))
	p.Serve()
	err := p.Register()
	if message := status.Convert(err).Message(); !strings.Contains(message, "failed to get device plugin options") || !strings.Contains(message, "GetDevicePluginOptions failed") {
		t.Errorf("err = %v", err)
	}
	f.eventually("no connection is left", func() bool { return p.Connections() == 0 })
	if n := len(p.Requests()); n != 1 || p.Calls(plugintest.GetOptions) != 1 || len(f.Offers()) != 0 {
		t.Errorf("%d calls; offers = %+v", n, f.Offers())
	}
}

// The last list stays, nothing new comes from it, and the plugin is dialled back.
func TestStreamFailsAfterListing(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	p.Before(plugintest.ListAndWatch, plugintest.Fail("no list after this one"))
	p.EndStreams(fmt.Errorf("broken"))
	f.eventually("the offer is stale", f.is(device.Stale))
	if o := f.offer(); !o.Reported || len(o.Inventory.Devices) != 2 {
		t.Errorf("offer = %+v", o)
	}
	_, err := f.Allocate(t.Context(), pod, container, gpu, nil)
	wantRefusal(t, err, device.PluginStale)
	p.Before(plugintest.ListAndWatch, nil)
	f.eventually("it serves again", f.servesNumber(2))
}

// Each message is the whole list.
func TestListIsReplaced(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Dev("a", plugintest.Healthy), plugintest.Dev("b", plugintest.Healthy))
	f.eventually("the first list", f.serves("a", "b"))
	p.Set(plugintest.Dev("c", plugintest.Healthy), plugintest.Dev("b", plugintest.Healthy))
	f.eventually("some go and some come", f.serves("b", "c"))
	p.Set(plugintest.Dev("d", plugintest.Healthy))
	f.eventually("all are others", f.serves("d"))
	p.Set()
	f.eventually("all are gone", f.servesNumber(0))
}

// One word is health, and it is spelled in one way.
func TestHealth(t *testing.T) {
	t.Parallel()
	f := start(t)
	var devices []*plugintest.Device
	for i, health := range []string{"", "Healthy", "healthy", "HEALTHY", "Healthy ", " Healthy", "Healthy\x00", "Unhealthy", "OK", "Healthy"} {
		devices = append(devices, plugintest.Dev(fmt.Sprint("dev", i), health))
	}
	p := plugintest.Start(t, f.dir, gpu, devices...)
	f.eventually("the plugin serves", f.servesNumber(10))
	healthy := func() (n string) {
		for i, d := range f.offer().Inventory.Devices {
			if d.Healthy {
				n += fmt.Sprint(i)
			}
		}
		return n
	}
	if got := healthy(); got != "19" {
		t.Errorf("healthy are %s", got)
	}
	p.SetHealth("dev1", "Healthy!")
	p.SetHealth("dev0", "Healthy")
	f.eventually("health may come and go", func() bool { return healthy() == "09" })
}

// A plugin is registered with two devices, then again from another socket with the same two, then a third with another
// one. The number is 2, 2 and 1, whatever options they have, and whatever the old ones do afterwards.
func TestReRegistration(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"by Register", "by the watcher"} {
		for _, o := range []*plugintest.Options{{}, {PreStartRequired: true}, {GetPreferredAllocationAvailable: true},
			{PreStartRequired: true, GetPreferredAllocationAvailable: true}} {
			t.Run(fmt.Sprintf("%s,preStart=%t,prefers=%t", way, o.PreStartRequired, o.GetPreferredAllocationAvailable), func(t *testing.T) {
				f := start(t, watches(socketDir(t)))
				register := func(name string, devices ...string) *plugintest.Plugin {
					p := plugintest.New(t, f.dir, gpu)
					for _, d := range devices {
						p.Set(append(p.Listed(), plugintest.Dev(d, plugintest.Healthy))...)
					}
					p.Endpoint, p.Options = name+".sock", o
					p.Serve()
					if way == "by Register" {
						p.MustRegister()
					} else {
						p.Announce(filepath.Join(f.watched, name+".sock"))
						f.eventually(name+" is notified of its registration", wasNotified(p, true))
					}
					f.eventually(name+" serves", func() bool { return p.Streams() == 1 && f.serves(devices...)() })
					if got := f.offer(); got.PreStart != o.PreStartRequired || got.Prefers != o.GetPreferredAllocationAvailable {
						t.Errorf("offer = %+v", got)
					}
					return p
				}
				first := register("first", "dev1", "dev2")
				second := register("second", "dev1", "dev2")
				register("third", "dev3")
				first.Set(plugintest.Devices(5)...) // it is in reserve
				f.eventually("the old plugins' ends are noticed", func() bool {
					first.Stop()
					second.Kill()
					return len(f.Registrations()[gpu].Reserve) == 0
				})
				if !f.serves("dev3")() || f.metric("device_plugin_registration_total", gpu) != 3 || f.logs.count("plugin disconnected") != 0 {
					t.Errorf("an old plugin was heard: %+v", f.offer())
				}
			})
		}
	}
}

// A second registration that fails leaves the first plugin what it was.
func TestSecondRegistrationFails(t *testing.T) {
	t.Parallel()
	f := start(t)
	first := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the first plugin serves", f.servesNumber(2))
	second := plugintest.New(t, f.dir, gpu, plugintest.Devices(5)...)
	second.Endpoint = "second.sock"
	second.Before(plugintest.GetOptions, plugintest.Fail("not ready"))
	second.Serve()
	if second.Register() == nil {
		t.Error("it was taken without options")
	}
	first.Set(plugintest.Devices(3)...)
	f.eventually("the first plugin is heard", f.servesNumber(3))
	if _, err := f.Allocate(t.Context(), pod, container, gpu, nil); err != nil || first.Calls(plugintest.Allocate) != 1 {
		t.Errorf("the first plugin is not asked: %v", err)
	}
	second.Stop()
	first.Stop()
	f.eventually("and its end is noticed", f.is(device.Stale))
}

// A registration that fails after the dial leaves no connection and no goroutine behind.
func TestRefusedRegistrationLeaksNothing(t *testing.T) {
	f := prepare(t)
	f.SetRegisterTimeout(50 * time.Millisecond)
	f.run()
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	fails, hangs := plugintest.New(t, f.dir, gpu), plugintest.New(t, f.dir, "vendor.example/hangs")
	fails.Before(plugintest.GetOptions, plugintest.Fail("not ready"))
	hangs.Before(plugintest.GetOptions, plugintest.Hang)
	fails.Serve()
	hangs.Serve()
	before := 0
	for i := range 10 {
		if fails.Register() == nil || hangs.Register() == nil {
			t.Fatal("it was taken")
		}
		f.eventually("no connection is left", func() bool { return fails.Connections()+hangs.Connections() == 0 })
		if i == 0 {
			before = runtime.NumGoroutine()
		}
	}
	f.eventually("no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// The list may change while a plugin is asked for a device of it.
func TestDeviceVanishesDuringAllocate(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	gate := make(chan struct{})
	p.Before(plugintest.Allocate, plugintest.HoldUntil(gate))
	type result struct {
		grant device.Grant
		err   error
	}
	done := make(chan result, 1)
	go func() {
		g, err := f.Allocate(context.Background(), pod, container, gpu, []device.ID{"dev-000001"})
		done <- result{g, err}
	}()
	f.eventually("the call is there", func() bool { return p.Calls(plugintest.Allocate) == 1 })
	p.Set(plugintest.Devices(1)...)
	f.eventually("the device is gone", f.servesNumber(1)) // a call does not hold up the list
	close(gate)
	if r := <-done; r.err != nil || r.grant.Env["DEVICES"] != "dev-000001" {
		t.Errorf("the plugin's answer was lost: %+v, %v", r.grant, r.err)
	}
}
