package nri

import (
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
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
			reports := len(l.unlisted)
			l.mu.Unlock()
			if reports != 1 {
				t.Errorf("%d events on the Node, want one", reports)
			}
			left.Store(true)
			if got := l.list(t); len(got) != 16 {
				t.Errorf("%d containers are listed, want 16", len(got))
			}
			eventually(t, "devmgrd is connected", func() bool { return l.connection.Check() == nil })
		})
	}
}

// NRI 0.12.5 panics when fewer than four pods or containers are left to list and do not fit into a message. A devmgrd that connected
// again at once would end the runtime again at once, and the pods could not be deleted.
func TestFailures(t *testing.T) {
	unlisted := error(&unlistedError{pods: 4, containers: 4})
	refused := error(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	for name, test := range map[string]struct {
		errs    []error
		longest time.Duration
		says    string
	}{
		"the runtime is away":                        {[]error{refused, refused, refused, refused}, lastPause, ""},
		"it is restarted":                            {[]error{errLost, refused, refused}, lastPause, ""},
		"it is restarted while it lists":             {[]error{unlisted, refused, refused}, lastPause, ""},
		"it closes connections":                      {[]error{unlisted, unlisted, unlisted}, unlistedPause, "it listed 4 pods and 4 containers"},
		"it ends each time":                          {[]error{unlisted, refused, unlisted, refused, unlisted}, endedPause, "NRI panics"},
		"it ends each time, and is away":             {[]error{unlisted, refused, unlisted, refused, unlisted, refused}, endedPause, ""},
		"it ended each time, and has listed all":     {[]error{unlisted, refused, unlisted, unlisted, errLost, refused}, lastPause, ""},
		"it ended once, long before, and closes now": {[]error{unlisted, refused, errLost, unlisted, unlisted, unlisted}, unlistedPause, "the next four"},
	} {
		t.Run(name, func(t *testing.T) {
			f, cause := newFailures(), ""
			for _, err := range test.errs {
				cause, _ = f.add(err)
			}
			if got := f.pause().Last; got != test.longest {
				t.Errorf("the longest pause is %s, want %s", got, test.longest)
			}
			if !strings.Contains(cause, test.says) || cause != "" && test.says == "" {
				t.Errorf("the cause is %q, want %q", cause, test.says)
			}
		})
	}
}

// The runtime waits for all container operations before it lists, and starts none: a stop that hangs stops the node.
func TestConnection_RuntimeDoesNotList_IsReported(t *testing.T) {
	var started atomic.Bool // NRI lists once at its own start too
	release := make(chan struct{})
	_, socket := runtimeOf(t, func() ([]*api.PodSandbox, []*api.Container) {
		if started.Load() {
			<-release
		}
		return nil, nil
	})
	started.Store(true)
	l := connectWith(t, socket, func(n *Connection) { n.listLimit = 10 * time.Millisecond })
	eventually(t, "the cause is said", func() bool {
		return strings.Contains(fmt.Sprint(l.connection.Check()), "has not listed its containers within 10ms")
	})
	close(release)
	l.list(t)
	eventually(t, "devmgrd is connected", func() bool { return l.connection.Check() == nil })
}

// A runtime that is restarted, or that takes an answer for late, is not taken for one that cannot list its containers.
func TestProgress(t *testing.T) {
	for name, test := range map[string]struct {
		progress *progress
		took     time.Duration
		says     string
	}{
		"after all were listed": {&progress{pods: 1, containers: 1, complete: true}, 0, "the connection was closed"},
		"before":                {&progress{}, time.Second, "before it had listed its containers, after 0 pods and 0 containers"},
		"amid":                  {&progress{pods: 3, containers: 7}, time.Second, "after 3 pods and 7 containers"},
		"late":                  {&progress{pods: 3, containers: 7}, 2 * time.Second, "was not taken within 2s (plugin_request_timeout)"},
	} {
		if err := test.progress.end(test.took, 2*time.Second); !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
