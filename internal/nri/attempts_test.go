package nri

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// try has the runtime create a container under an ID of its own, perhaps validate and start it, and end it.
func (p *plugin) try(t *testing.T, id int, validates, starts bool) {
	t.Helper()
	c := container()
	c.Id = fmt.Sprint("c", id)
	adj, _, err := p.CreateContainer(t.Context(), sandbox(), c)
	if err != nil {
		t.Fatal(err)
	}
	if validates {
		req := &api.ValidateContainerAdjustmentRequest{Pod: sandbox(), Container: c, Adjust: adj}
		if err := p.ValidateContainerAdjustment(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	if starts {
		if err := p.StartContainer(t.Context(), sandbox(), c); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.StopContainer(t.Context(), sandbox(), c); err != nil {
		t.Fatal(err)
	}
}

func TestAttempts_ContainerNeverStarts_IsReported(t *testing.T) {
	t.Parallel()
	for _, validates := range []bool{false, true} {
		p, w := newPlugin(t)
		w.set(ready())
		for id := range 20 {
			p.try(t, id, validates, false)
		}
		if len(w.notStarted) != 3 || !strings.HasPrefix(w.notStarted[2], "ns/pod/main 16: ") { // 4, 8, 16
			t.Fatalf("reported %q", w.notStarted)
		}
		if named := strings.Contains(w.notStarted[0], "sets the same variable"); named == validates {
			t.Errorf("validated: %v, reported %q", validates, w.notStarted[0])
		}
	}
}

func TestAttempts_ContainerThatStarts_IsNotReported(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	for id := range 20 {
		w.set(ready())
		p.try(t, id, true, id%4 == 3) // it crashes; and some of its starts fail
	}
	for id := range 20 { // it asks for nothing
		w.set(device.Readiness{State: device.NoDevices})
		p.try(t, id, true, false)
	}
	if len(w.notStarted) > 0 {
		t.Errorf("reported %q", w.notStarted)
	}
}

func TestAttempts_AreForgotten(t *testing.T) {
	t.Parallel()
	var a attempts
	for i := range 3 * maxAttempts {
		a.given(device.Container{Pod: device.PodUID(fmt.Sprint(i)), Name: "main"}, "c", nil)
		if len(a.all) > maxAttempts {
			t.Fatalf("%d containers are remembered", len(a.all))
		}
	}
	p, w := newPlugin(t)
	w.set(ready())
	p.try(t, 1, true, false)
	if err := p.RemovePodSandbox(t.Context(), sandbox()); err != nil || len(p.attempts.all) != 0 {
		t.Errorf("%d containers of a pod that is gone are remembered, %v", len(p.attempts.all), err)
	}
}

// An injector is another NRI plugin, which sets a variable that devmgrd sets too.
type injector struct{}

func (injector) CreateContainer(context.Context, *api.PodSandbox, *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	adj := &api.ContainerAdjustment{}
	adj.AddEnv("NEW", "2")
	return adj, nil, nil
}

func TestAttempts_AnotherPluginSetsTheSameVariable(t *testing.T) {
	t.Parallel()
	r, socket := runtime(t, []*api.PodSandbox{sandbox()}, nil)
	other, err := stub.New(injector{}, stub.WithPluginName("injector"), stub.WithPluginIdx("10"), stub.WithSocketPath(socket),
		stub.WithOnClose(func() {}), stub.WithLogger(logger{slog.New(slog.DiscardHandler)}))
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(other.Stop)
	l := connect(t, socket, startLimit)
	l.list(t)
	l.set(ready())
	var reports []string
	id := 0
	plugintest.Eventually(t, "the failed attempts are reported", func() bool {
		c := container()
		c.Id = fmt.Sprint("c", id)
		id++
		_, err = r.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{Pod: sandbox(), Container: c})
		l.mu.Lock()
		defer l.mu.Unlock()
		reports = slices.Clone(l.notStarted)
		return len(reports) > 0
	})
	if err == nil || !strings.Contains(err.Error(), "both tried to set") || !strings.Contains(reports[0], "another NRI plugin") {
		t.Errorf("%v; reported %q", err, reports)
	}
}
