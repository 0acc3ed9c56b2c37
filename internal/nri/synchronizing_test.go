package nri

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// Four neighbouring containers that do not fit into one message keep every NRI plugin from connecting. devmgrd says so by its cause, and
// connects when they are gone.
func TestConnection_ContainersThatCannotBeListed_AreTheCause(t *testing.T) {
	many := func(bytes int) (all []*api.Container) {
		for i := range 16 {
			c := sized(bytes, "x")
			c.Id = fmt.Sprint(i)
			all = append(all, c)
		}
		return all
	}
	var pods []*api.PodSandbox // with fewer than four, NRI 0.12.5 panics in the runtime
	for i := range 8 {
		s := sandbox()
		s.Id = fmt.Sprint("s-", i)
		pods = append(pods, s)
	}
	for name, test := range map[string]struct {
		containers []*api.Container
		says       string
	}{
		"all of them":       {many(1_400_000), "it listed 0 pods and 0 containers"},
		"some after others": {append(many(600_000), many(1_400_000)...), "it listed 8 pods and 16 containers"},
	} {
		t.Run(name, func(t *testing.T) {
			var left atomic.Bool
			var asked atomic.Int32
			_, socket := runtimeOf(t, func() ([]*api.PodSandbox, []*api.Container) {
				asked.Add(1)
				if left.Load() {
					return pods, many(100)
				}
				return pods, test.containers
			})
			l := connect(t, socket, startLimit)
			check := func() string { return fmt.Sprint(l.connection.Check()) }
			eventually(t, "the cause is said", func() bool { return strings.Contains(check(), "more than 4 MiB") })
			if got := check(); !strings.Contains(got, "not connected to container runtime at "+socket) || !strings.Contains(got, test.says) || !strings.Contains(got, "devmgrd check") {
				t.Errorf("/readyz says %s; want %q", got, test.says)
			}
			if n := asked.Load(); n < maxUnlisted {
				t.Errorf("it is said after %d connections", n)
			}
			eventually(t, "it is tried again", func() bool { return asked.Load() > maxUnlisted+1 })
			l.mu.Lock()
			told := len(l.unlisted)
			l.mu.Unlock()
			if told != 1 {
				t.Errorf("the Node's owners were told %d times, want once", told)
			}
			left.Store(true)
			if got := l.list(t); len(got) != 16 {
				t.Errorf("%d containers are listed, want 16", len(got))
			}
			eventually(t, "devmgrd is connected", func() bool { return l.connection.Check() == nil })
		})
	}
}

// A runtime that is restarted, or that takes an answer for late, is not taken for one that cannot list its containers.
func TestProgress(t *testing.T) {
	for name, test := range map[string]struct {
		progress *progress
		took     time.Duration
		says     string
	}{
		"after all were listed": {&progress{pods: 1, containers: 1, reported: true}, 0, "the connection was closed"},
		"before":                {&progress{}, time.Second, "before it had listed its containers, after 0 pods and 0 containers"},
		"amid":                  {&progress{pods: 3, containers: 7}, time.Second, "after 3 pods and 7 containers"},
		"late":                  {&progress{pods: 3, containers: 7}, 2 * time.Second, "was not taken within 2s (plugin_request_timeout)"},
	} {
		if err := test.progress.end(test.took, 2*time.Second); !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
