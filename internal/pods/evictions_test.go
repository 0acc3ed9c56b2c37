package pods

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

func evicting(t *testing.T, api *kubetest.Server) *Evictions {
	t.Helper()
	e := NewEvictions(api.Client(), kubetest.Log(t))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *Evictions) idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.pods) == 0
}

func always() bool { return true }

func identity(name string) device.Pod {
	return device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name}
}

// A disruption budget may refuse an eviction: it is asked for again until it is granted, and holds up no other.
func TestEviction(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(newPod("a"))
	api.Put(newPod("b"))
	var budget atomic.Bool
	api.Refuse(func(verb, path string) int {
		if verb == "evict" && strings.Contains(path, "/a/") && !budget.Load() {
			return http.StatusTooManyRequests
		}
		return 0
	})
	e := evicting(t, api)
	e.Evict(identity("a"), "it has no device", always)
	e.Evict(identity("a"), "it has no device", always)
	e.Evict(identity("b"), "it has no device", always)
	left := func() int { e.mu.Lock(); defer e.mu.Unlock(); return len(e.pods) }
	kubetest.Until(t, "b is evicted", func() bool { return left() == 1 })
	budget.Store(true)
	kubetest.Until(t, "a is evicted", e.idle)
}

// What is gone is gone, and a pod of the same name that has come since is left alone.
func TestEvictionOfAnotherPod(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(newPod("a"))
	e := evicting(t, api)
	e.Evict(device.Pod{UID: "before", Namespace: "ns", Name: "a"}, "it has no device", always)
	e.Evict(identity("b"), "it has no device", always)
	kubetest.Until(t, "no eviction is left", e.idle)
	e.Evict(identity("a"), "it has no device", always)
	kubetest.Until(t, "a is evicted", e.idle)
	if n := api.Requests("evict"); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}

// A budget may hold an eviction up for hours. A pod whose device has recovered meanwhile is not evicted.
func TestEviction_ReasonGone_IsDropped(t *testing.T) {
	t.Parallel()
	api := kubetest.New(t)
	api.Put(newPod("a"))
	var broken, tried, evicted atomic.Bool
	broken.Store(true)
	api.Refuse(func(verb, path string) int {
		switch {
		case verb != "evict":
			return 0
		case broken.Load():
			tried.Store(true)
			return http.StatusTooManyRequests
		}
		evicted.Store(true)
		return 0
	})
	e := evicting(t, api)
	e.Evict(identity("a"), "its device has failed", broken.Load)
	kubetest.Until(t, "the budget refuses", tried.Load)
	broken.Store(false)
	kubetest.Until(t, "the eviction is dropped", e.idle)
	if evicted.Load() {
		t.Error("a pod with a healthy device has been evicted")
	}
}
