// Command scale measures what devmgrd costs the API server of a large cluster: a real kube-apiserver with etcd, scheduler and controller
// manager, and thousands of simulated nodes in one process. On each node devmgrd's own packages pods, podstatus and nodestatus run next to a thin
// kubelet, which does what a kubelet does at the API server. The thin kubelets alone are the base line.
//
//	go run ./test/scale -nodes 2000      as docs/scale.md was made: "make scale"
//
// Each node has two connections, one for the kubelet and one for devmgrd, and the meter counts what goes through them (meter.go).
// The scenarios (scenarios.go) are a start of all nodes, rest, a roll-out of devmgrd, pods that start, and a restart of the
// API server.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
)

type options struct {
	nodes   int
	within  time.Duration // all nodes start in it, and all devmgrds are replaced in it
	rest    time.Duration
	pods    int // starts in a second
	starts  time.Duration
	written string
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 2000, "how many nodes")
	flag.DurationVar(&o.within, "within", time.Minute, "in which time all nodes start")
	flag.DurationVar(&o.rest, "rest", time.Minute, "how long to watch the cluster at rest")
	flag.IntVar(&o.pods, "pods", 10, "how many pods start in a second")
	flag.DurationVar(&o.starts, "starts", time.Minute, "for how long pods start")
	flag.StringVar(&o.written, "o", "", "write the table to this `file` too, between its marks")
	flag.Parse()
	if flag.NArg() > 0 || o.nodes < 1 || o.pods < 1 {
		flag.Usage()
		os.Exit(2)
	}
	cluster.Main(func() int {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := run(ctx, o); err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			return 1
		}
		return 0
	}, cluster.Needs(cluster.Kubernetes))
}
