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

func identity(name string) device.Pod {
	return device.Pod{UID: device.PodUID(name), Namespace: "ns", Name: name}
}

// A disruption budget may refuse an eviction: it is asked for again until it is granted, and holds up no other.
func TestEviction(t *testing.T) {
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
	e.Evict(identity("a"), "it has no device")
	e.Evict(identity("a"), "it has no device")
	e.Evict(identity("b"), "it has no device")
	left := func() int { e.mu.Lock(); defer e.mu.Unlock(); return len(e.pods) }
	kubetest.Until(t, "b is evicted", func() bool { return left() == 1 })
	budget.Store(true)
	kubetest.Until(t, "a is evicted", e.idle)
}

// What is gone is gone, and a pod of the same name that has come since is left alone.
func TestEvictionOfAnotherPod(t *testing.T) {
	api := kubetest.New(t)
	api.Put(newPod("a"))
	e := evicting(t, api)
	e.Evict(device.Pod{UID: "before", Namespace: "ns", Name: "a"}, "it has no device")
	e.Evict(identity("b"), "it has no device")
	kubetest.Until(t, "nobody is to be evicted", e.idle)
	e.Evict(identity("a"), "it has no device")
	kubetest.Until(t, "a is evicted", e.idle)
	if n := api.Requests("evict"); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
}
