// Package allocatortest runs a real allocator on a real state file, for tests of packages that only read its state.
package allocatortest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// An Allocator runs until the test ends. The runtime has reported that no container runs.
type Allocator struct {
	*allocator.Allocator
	Plugins *Plugins
}

// Start starts an Allocator with an empty state file in dir. change may edit its configuration.
func Start(t testing.TB, dir string, change ...func(*allocator.Config)) *Allocator {
	t.Helper()
	books, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	a := &Allocator{Plugins: newPlugins()}
	c := allocator.Config{
		Registry: a.Plugins, Plugins: a.Plugins, Store: books, Notifier: noopNotifier{}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Topology: allocator.Topology{Policy: placement.BestEffort, Scope: placement.PerContainer},
	}
	for _, f := range change {
		f(&c)
	}
	a.Allocator = allocator.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	a.Plugins.accept = func(r device.ResourceName) {
		for ctx.Err() == nil {
			moved := a.Updated()
			want, is := a.Plugins.Offers()[r], a.Resources().ByName[r].Offer
			if is != nil && is.State == want.State && device.SameList(is.Inventory.Devices, want.Inventory.Devices) {
				return
			}
			select {
			case <-moved:
			case <-ctx.Done():
			}
		}
	}
	var work sync.WaitGroup
	work.Go(func() {
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		work.Wait()
		if err := books.Close(); err != nil {
			t.Error(err)
		}
	})
	a.RuntimeSynced(nil, nil)
	return a
}

// Pod returns a pod in namespace ns whose container main requests n devices. Its UID is its name after "uid-".
func Pod(name string, resource device.ResourceName, n int) device.PodDemand {
	id := device.Pod{UID: device.PodUID("uid-" + name), Namespace: "ns", Name: name}
	d := device.PodDemand{Pod: id, Created: time.Now(), Admitted: true, Containers: []string{"main"}}
	if n > 0 {
		d.Demands = []device.Demand{{Container: device.Container{Pod: id.UID, Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{resource: n}}}
	}
	return d
}

// Settle binds a pod and waits until it has its devices.
func (a *Allocator) Settle(t testing.TB, d device.PodDemand) device.PodDemand {
	t.Helper()
	a.Bind(d)
	late := time.After(time.Minute)
	for {
		moved := a.Updated()
		p := a.PodByUID(d.Pod.UID)
		switch p.State {
		case device.Ready, device.NoDevices:
			return d
		default:
			select {
			case <-moved:
			case <-late:
				t.Fatalf("pod %s is %v, and waits for %v", d.Pod, p.State, p.Wait)
			}
		}
	}
}

type noopNotifier struct{}

func (noopNotifier) Waiting(device.Pod, device.Wait)                       {}
func (noopNotifier) Assigned(device.Pod, []device.Assignment)              {}
func (noopNotifier) StartedWithoutDevices(device.Pod, string, func() bool) {}

func (noopNotifier) Failed(device.Pod, device.ResourceName, []device.ID)                   {}
func (noopNotifier) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool) {}
func (noopNotifier) DeviceRefused(device.ResourceName, device.ID, string)                  {}
func (noopNotifier) GivenUp(device.Pod, device.Wait, time.Duration, func() bool)           {}

// PodByUID returns a pod's status; the zero status: the pod is unknown.
func (a *Allocator) PodByUID(uid device.PodUID) device.PodStatus {
	for _, p := range a.Snapshot().Pods {
		if p.Pod.UID == uid {
			return p
		}
	}
	return device.PodStatus{}
}
