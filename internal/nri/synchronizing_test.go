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

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Four neighbouring containers that do not fit into one message keep every NRI plugin from connecting. devmgrd says so by its cause, and
// connects when they are gone.
func TestConnection_ContainersThatCannotBeListed_AreTheCause(t *testing.T) {
	t.Parallel()
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
			plugintest.Eventually(t, "the cause is said", func() bool { return strings.Contains(check(), "more than 4 MiB") })
			if got := check(); !strings.Contains(got, "not connected to container runtime at "+socket) || !strings.Contains(got, test.says) || !strings.Contains(got, "devmgrd check") {
				t.Errorf("/readyz says %s; want %q", got, test.says)
			}
			if n := asked.Load(); n < maxUnlisted {
				t.Errorf("it is said after %d connections", n)
			}
			plugintest.Eventually(t, "it is tried again", func() bool { return asked.Load() > maxUnlisted+1 })
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
			plugintest.Eventually(t, "devmgrd is connected", func() bool { return l.connection.Check() == nil })
		})
	}
}

// NRI 0.12.5 panics when fewer than four pods or containers are left to list and do not fit into a message. A devmgrd that connected
// again at once would end the runtime again at once, and the pods could not be deleted.
func TestFailures(t *testing.T) {
	t.Parallel()
	by := func(process int32) error { return &unlistedError{pods: 4, containers: 4, runtime: process} }
	late := func(limit time.Duration) error { return &unlistedError{late: true, limit: limit, runtime: 1} }
	ten := late(10 * time.Second)
	refused := error(&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED})
	for name, test := range map[string]struct {
		errs    []error
		longest time.Duration
		says    string
		reports int
	}{
		"the runtime is away":                     {[]error{refused, refused, refused, refused}, lastPause, "", 0},
		"it is restarted":                         {[]error{errLost, refused, refused}, lastPause, "", 0},
		"it is restarted while it lists":          {[]error{by(1), refused, refused}, lastPause, "", 0},
		"it closes connections":                   {[]error{by(1), by(1), by(1), by(1)}, unlistedPause, "it listed 4 pods and 4 containers", 1},
		"it closes connections, then ends":        {[]error{by(1), by(1), by(1), refused, refused}, endedPause, "NRI panics", 2},
		"it ends each time":                       {[]error{by(1), refused, by(2), refused, by(3)}, endedPause, "NRI panics", 1},
		"it ends each time, and is soon back":     {[]error{by(1), by(2), by(3)}, endedPause, "NRI panics", 1},
		"it ends each time, and is away":          {[]error{by(1), refused, by(2), refused, by(3), refused}, endedPause, "NRI panics", 1},
		"it ended, and closes now":                {[]error{by(1), refused, by(2), by(2), by(2)}, unlistedPause, "the next four", 1},
		"it ends and closes":                      {[]error{by(1), by(1), by(1), by(2), by(2), by(3)}, endedPause, "NRI panics", 2},
		"it ended each time, and has listed all":  {[]error{by(1), refused, by(2), by(3), errLost, refused}, lastPause, "", 1},
		"it ended once, listed, and closes again": {[]error{by(1), refused, errLost, by(2), by(2), by(2)}, unlistedPause, "the next four", 1},
		"it waits too briefly":                    {[]error{late(time.Second), late(time.Second), late(time.Second)}, unlistedPause, "within 1s: set plugin_request_timeout to 10s", 1},
		"it waits, and is still late":             {[]error{ten, ten, ten, ten}, unlistedPause, "within 10s (plugin_request_timeout): the node is short of CPU", 1},
		"it closes connections, once late":        {[]error{by(1), by(1), ten, by(1)}, unlistedPause, "the next four", 1},
		"it closes connections, the last late":    {[]error{by(1), by(1), ten}, unlistedPause, "the next four", 1},
		"it is late, then closes connections":     {[]error{ten, ten, ten, by(1)}, unlistedPause, "the next four", 2},
		"it is late, then ends":                   {[]error{ten, ten, ten, refused}, endedPause, "NRI panics", 2},
		"it was late, and has listed all":         {[]error{ten, ten, errLost, ten, ten}, lastPause, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, cause, reports := newFailures(), "", 0
			for _, err := range test.errs {
				var isNew bool
				if cause, isNew = f.add(err); isNew {
					reports++
				}
			}
			if got := f.pause().Last; got != test.longest {
				t.Errorf("the longest pause is %s, want %s", got, test.longest)
			}
			if !strings.Contains(cause, test.says) || cause != "" && test.says == "" {
				t.Errorf("the cause is %q, want %q", cause, test.says)
			}
			if reports != test.reports {
				t.Errorf("%d explanations are new, want %d", reports, test.reports)
			}
		})
	}
}

// The runtime waits for all container operations before it lists, and starts none: a stop that hangs stops the node.
func TestConnection_RuntimeDoesNotList_IsReported(t *testing.T) {
	t.Parallel()
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
	plugintest.Eventually(t, "the cause is said", func() bool {
		return strings.Contains(fmt.Sprint(l.connection.Check()), "has not listed its containers within 10ms")
	})
	close(release)
	l.list(t)
	plugintest.Eventually(t, "devmgrd is connected", func() bool { return l.connection.Check() == nil })
}

// A runtime that is restarted, or that takes an answer for late, is not taken for one that cannot list its containers.
func TestProgress(t *testing.T) {
	t.Parallel()
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
		if err := test.progress.end(test.took, 2*time.Second, 1); !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v, want %q", name, err, test.says)
		}
	}
}
