package nri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/ttrpc"
)

// A runtime takes an NRI plugin up in three steps: it accepts the registration, configures the plugin, and lists all pods and
// containers to it (Synchronize). The runtime sends those in parts of at most 4 MiB, but never in parts of fewer than four pods and four
// containers, and it closes the connection if it cannot. All that a plugin sees of that is the end of the connection between
// the second and the third step, each time that it connects. A runtime that is restarted looks the same, but only once.

// maxUnlisted is how many connections in a row end so before that counts as the cause.
const maxUnlisted = 3

// A progress is how far the runtime has come in taking devmgrd up, over one connection.
type progress struct {
	mu               sync.Mutex
	pods, containers int  // of which the runtime has told
	reported         bool // of all of them
}

// intercept is bounded, and notes what the runtime tells.
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
			g.reported = !part.GetMore()
		}
		return err
	}, info, method)
}

// end returns why the connection ended, as far as devmgrd can see. took is how long the runtime had after it had configured devmgrd, and
// limit how long it waits for an answer.
func (g *progress) end(took, limit time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reported {
		return errLost
	}
	return &unlistedError{pods: g.pods, containers: g.containers, late: limit > 0 && took >= limit, limit: limit}
}

var errLost = errors.New("the connection was closed")

// An unlistedError is a connection that ended before the runtime had told of all pods and containers.
type unlistedError struct {
	pods, containers int  // of which it had told
	late             bool // it had as long as it waits for an answer
	limit            time.Duration
}

func (e *unlistedError) Error() string {
	if e.late {
		return fmt.Sprintf("the runtime closed the connection since its list of pods and containers was not taken within %s (plugin_request_timeout)", e.limit)
	}
	return fmt.Sprintf("the runtime closed the connection before it had listed its containers, after %d pods and %d containers", e.pods, e.containers)
}

// cause explains a connection that ends so each time.
func (e *unlistedError) cause() string {
	if e.late {
		return fmt.Sprintf("the runtime closes each connection since its list of pods and containers is not taken within %s: set plugin_request_timeout to 10s in the runtime's NRI configuration", e.limit)
	}
	return fmt.Sprintf("the runtime closes each connection before it has listed its containers (it listed %d pods and %d containers): the next four pods and containers probably have more than 4 MiB "+
		"of arguments, variables and annotations, which NRI cannot send in one message; devmgrd check names the largest", e.pods, e.containers)
}
