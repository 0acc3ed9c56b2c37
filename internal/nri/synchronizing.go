package nri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"

	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A runtime accepts an NRI plugin in three steps: it accepts the registration, configures the plugin, and lists all pods and
// containers to it (Synchronize). It sends the list in parts of at most 4 MiB, and of at least four pods and four containers. If
// four of each are larger, it closes the connection; if fewer than four of either are left to send, NRI 0.12.5 panics and the runtime
// ends. Of both, a plugin sees that the connection ends between the second and the third step, each time that it connects. A restart
// of the runtime looks the same, but only once.

// maxUnlisted is the number of connections in a row without a complete list that count as such a failure.
const maxUnlisted = 3

// A progress is how much of its list the runtime has sent over one connection.
type progress struct {
	mu               locks.Mutex[locks.Leaf]
	pods, containers int
	complete         bool
}

// intercept calls bounded, and counts what the runtime lists.
func (g *progress) intercept(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
	if !strings.HasSuffix(info.FullMethod, "/Synchronize") {
		return bounded(ctx, unmarshal, info, method)
	}
	return bounded(ctx, func(to any) error {
		err := unmarshal(to)
		if part, ok := to.(*api.SynchronizeRequest); ok && err == nil {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.pods += len(part.GetPods())
			g.containers += len(part.GetContainers())
			g.complete = !part.GetMore()
		}
		return err
	}, info, method)
}

// end returns why the connection ended, as far as devmgrd can see. took is the time since the runtime configured devmgrd, limit is how
// long the runtime waits for an answer, and runtime is its process.
func (g *progress) end(took, limit time.Duration, runtime int32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.complete {
		return errLost
	}
	return &unlistedError{pods: g.pods, containers: g.containers, late: limit > 0 && took >= limit, runtime: runtime, limit: limit}
}

var errLost = errors.New("the connection was closed")

// An unlistedError is a connection that ended before the list was complete.
type unlistedError struct {
	pods, containers int   // listed before
	late             bool  // the runtime has waited for an answer as long as it does
	runtime          int32 // its process; 0: not known
	limit            time.Duration
}

func (e *unlistedError) Error() string {
	if e.late {
		return fmt.Sprintf("the runtime closed the connection since its list of pods and containers was not taken within %s (plugin_request_timeout)", e.limit)
	}
	return fmt.Sprintf("the runtime closed the connection before it had listed its containers, after %d pods and %d containers", e.pods, e.containers)
}

// A kind is a way in which connections end each time.
type kind int

const (
	closing kind = iota // the runtime closes them: its list does not fit into its messages
	late                // it closes them since devmgrd does not take the list in time
	ending              // it ends
	kinds
)

// explain returns the cause of connections that end so each time, the latest with e.
func (k kind) explain(e *unlistedError) string {
	const (
		configuredLimit = 10 * time.Second // plugin_request_timeout in packaging/containerd and packaging/crio
		largest         = "devmgrd check names the largest"
	)
	switch {
	case k == ending:
		return fmt.Sprintf("the runtime ended before it had listed its containers (it listed %d pods and %d containers), probably because NRI panics when pods and containers have more than 4 MiB "+
			"of arguments, variables and annotations together; devmgrd connects again within %s; %s", e.pods, e.containers, endedPause, largest)
	case k == late && e.limit < configuredLimit:
		return fmt.Sprintf("the runtime closes each connection since its list of pods and containers is not taken within %s: set plugin_request_timeout to %s in the runtime's NRI configuration", e.limit, configuredLimit)
	case k == late:
		return fmt.Sprintf("the runtime closes each connection since its list of pods and containers is not taken within %s (plugin_request_timeout): the node is short of CPU, "+
			"or pods and containers have too many arguments, variables and annotations; %s", e.limit, largest)
	}
	return fmt.Sprintf("the runtime closes each connection before it has listed its containers (it listed %d pods and %d containers): the next four pods and containers probably have more than 4 MiB "+
		"of arguments, variables and annotations, which NRI cannot send in one message; %s", e.pods, e.containers, largest)
}

const (
	// Pauses between attempts to connect. They are short: meanwhile new containers wait or, without the admission policy, start without
	// their devices, and an attempt costs microseconds while no process listens.
	firstPause = 50 * time.Millisecond
	lastPause  = 500 * time.Millisecond

	// unlistedPause is the longest pause while the runtime cannot list its containers. At each attempt it encodes all of them several
	// times, with the lock that every container operation needs.
	unlistedPause = 5 * time.Second

	// endedPause is the longest pause while the runtime ends at each attempt. Between two attempts the node has to get its work done, and the
	// kubelet has to delete the pods.
	endedPause = 4 * time.Minute
)

// failures counts connections in a row that ended without a complete list, and has the pauses between attempts.
type failures struct {
	unlisted int
	late     int            // of these, the latest ones in a row that ended late
	last     *unlistedError // the latest of them
	ended    bool           // the runtime has ended with the latest: the socket refuses connections, or another process listens
	reported [kinds]bool

	ordinary, listing, ending loops.Backoff
}

func newFailures() *failures {
	return &failures{
		ordinary: loops.Backoff{First: firstPause, Last: lastPause},
		listing:  loops.Backoff{First: lastPause, Last: unlistedPause},
		ending:   loops.Backoff{First: unlistedPause, Last: endedPause},
	}
}

// add counts an attempt that ended with err. It returns the explanation, if there is one, and whether it is new.
func (f *failures) add(err error) (cause string, isNew bool) {
	var unlisted *unlistedError
	var network *net.OpError
	switch {
	case errors.As(err, &unlisted):
		f.ended = f.last != nil && f.last.runtime != unlisted.runtime
		f.unlisted++
		f.last = unlisted
		f.late++
		if !unlisted.late {
			f.late = 0
		}
	case f.unlisted > 0 && errors.As(err, &network) && network.Op == "dial":
		f.ended = true
	default:
		f.unlisted, f.late, f.last, f.ended, f.reported = 0, 0, nil, false, [kinds]bool{}
		f.listing.Reset()
		f.ending.Reset()
		return "", false
	}
	if f.unlisted < maxUnlisted {
		return "", false
	}
	k := f.kind()
	isNew = !f.reported[k]
	f.reported[k] = true
	return k.explain(f.last), isNew
}

// kind returns how the connections end. A busy runtime may be late with a list that it cannot send: one connection that ended late says
// little, so all of maxUnlisted have to.
func (f *failures) kind() kind {
	switch {
	case f.ended:
		return ending
	case f.late >= maxUnlisted:
		return late
	}
	return closing
}

// pause returns the pauses to use now.
func (f *failures) pause() *loops.Backoff {
	switch {
	case f.unlisted < maxUnlisted:
		return &f.ordinary
	case f.ended:
		return &f.ending
	}
	return &f.listing
}
