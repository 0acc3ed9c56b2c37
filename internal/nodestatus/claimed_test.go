package nodestatus_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
)

// slicesOf are ResourceSlices that the test shows.
type slicesOf struct {
	writable <-chan struct{}                // nil: from the start
	sliced   func(device.ResourceName) bool // nil: none is
}

func (s slicesOf) Writable() <-chan struct{} {
	if s.writable != nil {
		return s.writable
	}
	at := make(chan struct{})
	close(at)
	return at
}

func (s slicesOf) Sliced(r device.ResourceName) bool { return s.sliced != nil && s.sliced(r) }

// publishClaimed runs a Publisher for a node whose resources are all offered through claims.
func publishClaimed(t *testing.T, api *kubetest.Server, v *view, sliceable <-chan struct{}, edit ...func(*nodestatus.Config)) *nodestatus.Publisher {
	t.Helper()
	c := nodestatus.Config{
		NodeName: "n1", Client: api.Client(), View: v, Notifier: v, Cordons: v, Components: v.components, Ignored: func(device.ResourceName) bool { return false },
		Claimed: func(device.ResourceName) bool { return true }, Slices: slicesOf{writable: sliceable}, SaveUncounted: func([]device.ResourceName, time.Time) error { return nil },
		KubeletDir: t.TempDir(), Log: kubetest.Log(t), Metrics: prometheus.NewRegistry(),
	}
	for _, f := range edit {
		f(&c)
	}
	p := nodestatus.New(c)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return p
}

// The API server does not accept ResourceSlices: it may lack the API, or devmgrd the right. A resource that the Node shows stays, and its number follows the
// devices.
func TestClaimed_SlicesCannotBeWritten_NodeKeepsItsNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		gpus := func(n string) map[string]string { return map[string]string{"a.example/gpu": n} }
		api.Put(node(gpus("4"), gpus("4")))
		v := newView(quantities{"a.example/gpu": 4, "a.example/nic": 1})
		sliceable := make(chan struct{})
		p := publishClaimed(t, api, v, sliceable)
		time.Sleep(time.Hour)
		if got := shows(api); len(got) != 1 || got["a.example/gpu"] != "4/4" {
			t.Errorf("the Node shows %v", got)
		}
		if _, uncounted, known := p.Uncounted("a.example/gpu"); uncounted || !known {
			t.Error("pods of the number would wait for claims")
		}
		v.set(quantities{"a.example/gpu": 3, "a.example/nic": 1})
		time.Sleep(time.Minute)
		if got := shows(api); got["a.example/gpu"] != "3/3" {
			t.Errorf("when a device has failed the Node shows %v", got)
		}
		close(sliceable)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := shows(api); len(got) > 0 {
			t.Errorf("when slices can be written the Node shows %v", got)
		}
	})
}

// Another writer keeps putting the number back: devmgrd takes it off each time, and raises the alarm.
func TestClaimed_NumberPutBack_RaisesTheAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		theirs := map[string]string{"a.example/gpu": "1"}
		v := newView(quantities{"a.example/gpu": 1})
		api.Put(node(theirs, theirs))
		p := publishClaimed(t, api, v, nil)
		for range 8 {
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := shows(api); len(got) > 0 {
				t.Errorf("the Node shows %v", got)
			}
			api.Put(node(theirs, theirs))
		}
		synctest.Wait()
		if len(v.alarms()) == 0 || p.Check() == nil {
			t.Errorf("alarms about %v, Check: %v", v.alarms(), p.Check())
		}
	})
}

// The state file has been lost, and with it when a resource was taken off the Node: pods that were created before may have been bound by its number.
func TestClaimed_StateFileLost_NumberMayHaveGoneJustBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		api.Put(node(nil, nil))
		v := newView(quantities{"a.example/gpu": 1, "a.example/nic": 1})
		started, before := time.Now(), time.Now().Add(-time.Hour)
		saved := map[device.ResourceName]time.Time{}
		p := publishClaimed(t, api, v, nil, func(c *nodestatus.Config) {
			c.Forgotten, c.Uncounted = started, map[device.ResourceName]time.Time{"a.example/nic": before}
			c.SaveUncounted = func(all []device.ResourceName, at time.Time) error {
				for _, r := range all {
					saved[r] = at
				}
				return nil
			}
		})
		time.Sleep(time.Minute)
		synctest.Wait()
		for r, want := range map[device.ResourceName]time.Time{"a.example/gpu": started, "a.example/nic": before} {
			if since, uncounted, known := p.Uncounted(r); !known || !uncounted || !since.Equal(want) {
				t.Errorf("%s: %v, %v, %v, want %v", r, since, uncounted, known, want)
			}
		}
		if len(saved) != 1 || !saved["a.example/gpu"].Equal(started) {
			t.Errorf("saved are %v", saved)
		}
	})
}

// This node's clock is behind that of the API server, which dates pods: what was taken off the Node now is dated as they are.
func TestClaimed_ClockIsBehind_TimeIsTheAPIServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		const behind = 5 * time.Minute
		api.Ahead(behind)
		gpus := map[string]string{"a.example/gpu": "4"}
		api.Put(node(gpus, gpus))
		saved := map[device.ResourceName]time.Time{}
		p := publishClaimed(t, api, newView(quantities{"a.example/gpu": 4}), nil, func(c *nodestatus.Config) {
			c.SaveUncounted = func(all []device.ResourceName, at time.Time) error {
				for _, r := range all {
					saved[r] = at
				}
				return nil
			}
		})
		began := time.Now()
		time.Sleep(time.Minute)
		synctest.Wait()
		since, uncounted, _ := p.Uncounted("a.example/gpu")
		if !uncounted || since.Before(began.Add(behind)) || !saved["a.example/gpu"].Equal(since) {
			t.Errorf("%v, %v after the start, saved %v", uncounted, since.Sub(began), saved)
		}
	})
}
