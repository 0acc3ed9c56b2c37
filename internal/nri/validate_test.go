package nri

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/devmgrd/devmgrd/internal/device"
)

// What other NRI plugins do to our answer, as the runtime puts it together.
func TestValidation(t *testing.T) {
	t.Parallel()
	without := func(drop func(all *api.ContainerAdjustment)) func(*api.ContainerAdjustment, *api.OwningPlugins) {
		return func(all *api.ContainerAdjustment, _ *api.OwningPlugins) { drop(all) }
	}
	for name, test := range map[string]struct {
		meddle func(*api.ContainerAdjustment, *api.OwningPlugins)
		want   string // in the error; empty: it passes
	}{
		"nothing": {without(func(*api.ContainerAdjustment) {}), ""},
		"more of everything": {without(func(all *api.ContainerAdjustment) {
			all.AddEnv("OTHER", "1")
			all.AddMount(&api.Mount{Destination: "/other", Source: "/"})
			all.AddDevice(&api.LinuxDevice{Path: "/dev/other", Type: "c", Major: 1, Minor: 3})
			all.AddAnnotation("other", "1")
			all.AddCDIDevice(&api.CDIDevice{Name: "b.com/y=1"})
			all.RemoveMount("/dev/shm")
		}), ""},
		"the command line":      {without(func(all *api.ContainerAdjustment) { all.SetArgs([]string{"wrapped"}) }), ""},
		"no stamp":              {without(func(all *api.ContainerAdjustment) { delete(all.Annotations, stampKey) }), "annotation devmgrd.io/assignment"},
		"a stamp to be removed": {without(func(all *api.ContainerAdjustment) { all.RemoveAnnotation(stampKey) }), "annotation devmgrd.io/assignment"},
		"another stamp": {func(all *api.ContainerAdjustment, owners *api.OwningPlugins) {
			all.Annotations[stampKey] = `{"a.com/x":["1"]}`
			owners.ClearAnnotation("c", stampKey, "10-thief")
			_ = owners.ClaimAnnotation("c", stampKey, "10-thief")
		}, "annotation devmgrd.io/assignment (by 10-thief);"},
		"another value": {func(all *api.ContainerAdjustment, owners *api.OwningPlugins) {
			all.Env[1] = &api.KeyValue{Key: all.Env[1].Key, Value: "secret"}
			owners.ClearEnv("c", all.Env[1].Key, "10-thief")
		}, "environment variable NEW (by 10-thief);"},
		"no variables": {without(func(all *api.ContainerAdjustment) { all.Env = nil }), "environment variable FROM_IMAGE, environment variable NEW;"},
		"no mounts":    {without(func(all *api.ContainerAdjustment) { all.Mounts = nil }), "mount /m, mount /p;"},
		"a plugin's mount as the pod has it": {without(func(all *api.ContainerAdjustment) {
			for _, m := range all.Mounts {
				if m.Source == "/d" {
					m.Source = "/k/device-plugins"
				}
			}
		}), "mount /p;"},
		"no device nodes":     {without(func(all *api.ContainerAdjustment) { all.Linux.Devices = nil }), "device node /dev/x, device node /dev/y;"},
		"another device node": {without(func(all *api.ContainerAdjustment) { all.Linux.Devices[0].Minor = 5 }), "device node /dev/x;"},
		"no CDI devices":      {without(func(all *api.ContainerAdjustment) { all.CDIDevices = nil }), "CDI device a.com/x=1;"},
		"nothing left":        {func(all *api.ContainerAdjustment, _ *api.OwningPlugins) { proto.Reset(all) }, "annotation devmgrd.io/assignment"},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := newPlugin(t)
			w.set(ready())
			pod, ctr := sandbox(), container()
			ctr.Mounts = append(ctr.Mounts, &api.Mount{Type: "bind", Source: "/k/device-plugins", Destination: "/p"})
			ours, _, err := p.CreateContainer(t.Context(), pod, ctr)
			if err != nil {
				t.Fatal(err)
			}
			all, owners := proto.CloneOf(ours), api.NewOwningPlugins()
			test.meddle(all, owners)
			request := &api.ValidateContainerAdjustmentRequest{Pod: pod, Container: ctr, Adjust: all, Owners: owners}
			err = p.ValidateContainerAdjustment(t.Context(), request)
			switch {
			case test.want == "":
				if err != nil {
					t.Error(err)
				}
			case err == nil || !strings.Contains(err.Error(), "devmgrd: container main of pod ns/pod cannot start yet: Overruled: ") ||
				!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "nri.index"):
				t.Errorf("%v, want an error with %q", err, test.want)
			case strings.Contains(err.Error(), "secret"):
				t.Errorf("the error tells a variable's value: %v", err)
			}
		})
	}
}

// Each answer is validated once, and what has never been asked for is not right either.
func TestValidation_OncePerAnswer(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(device.Readiness{State: device.NoDevices})
	request := &api.ValidateContainerAdjustmentRequest{Pod: sandbox(), Container: container(), Adjust: &api.ContainerAdjustment{}}
	ask := func() error {
		t.Helper()
		_, _, err := p.CreateContainer(t.Context(), sandbox(), container())
		return err
	}
	for name, test := range map[string]struct {
		before func() error
		passes bool
	}{
		"never asked": {func() error { return nil }, false},
		"asked":       {ask, true},
		"asked, and validated": {func() error {
			if err := ask(); err != nil {
				return err
			}
			return p.ValidateContainerAdjustment(t.Context(), request)
		}, false},
		"asked, and given up": {func() error {
			if err := ask(); err != nil {
				return err
			}
			_, err := p.StopContainer(t.Context(), sandbox(), container())
			return err
		}, false},
	} {
		if err := test.before(); err != nil {
			t.Fatal(err)
		}
		if err := p.ValidateContainerAdjustment(t.Context(), request); (err == nil) != test.passes {
			t.Errorf("%s: %v; should it pass: %v", name, err, test.passes)
		}
	}
	if n := len(p.answers.all); n != 0 {
		t.Errorf("%d answers are kept", n)
	}
	if err := p.ValidateContainerAdjustment(t.Context(), nil); err == nil {
		t.Error("a question without a container passes")
	}
}

// A runtime that does not know an event takes no plugin that wants it.
func TestConfigure_EventsByRuntimeVersion(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[string]bool{
		"containerd 1.7.30": false, "containerd v2.0.14": false, "containerd v2.1.9": false, "containerd v2.2.0": true,
		"containerd v2.4.2": true, "containerd 3.0.0": true, "containerd ": false,
		"cri-o 1.33.9": false, "cri-o 1.34.0": true, "other v9.0.0": false,
	} {
		p, w := newPlugin(t)
		w.set(device.Readiness{State: device.NoDevices})
		name, version, _ := strings.Cut(runtime, " ")
		events, err := p.Configure(context.Background(), "", name, version)
		if err != nil {
			t.Fatal(err)
		}
		if !events.IsSet(api.Event_CREATE_CONTAINER) || events.IsSet(api.Event_VALIDATE_CONTAINER_ADJUSTMENT) != want {
			t.Errorf("%s: the events are %s; validation is wanted: %v", runtime, events.PrettyString(), want)
		}
		events.Clear(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
		if events >= 1<<11 { // RemoveContainer is the last one that NRI 0.9 knows
			t.Errorf("%s: the events are %s, and old runtimes do not know all of them", runtime, events.PrettyString())
		}
		// Without validation nothing would ever take the answers away.
		if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err != nil {
			t.Fatal(err)
		}
		if kept := len(p.answers.all) == 1; kept != want {
			t.Errorf("%s: the answer is kept: %v, want %v", runtime, kept, want)
		}
	}
}
