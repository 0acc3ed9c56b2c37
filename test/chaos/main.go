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
	"github.com/devmgrd/devmgrd/test/node"
)

// options are what a person has asked for.
type options struct {
	sequences int
	seed      uint64
	kubelet   bool
	attacker  bool
	claims    bool
	verbose   bool
	logs      string
}

func main() {
	if isNetworkPlugin() {
		if err := runNetworkPlugin(); err != nil {
			fmt.Printf(`{"cniVersion": "1.0.0", "code": 100, "msg": %q}`, err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) == 4 && os.Args[1] == "plugin" {
		fmt.Fprintln(os.Stderr, "plugin:", runPlugin(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if len(os.Args) == 4 && os.Args[1] == "attacker" {
		fmt.Fprintln(os.Stderr, "attacker:", runAttacker(os.Args[2], os.Args[3]))
		os.Exit(1)
	}
	if len(os.Args) == 3 && os.Args[1] == "local-user" {
		fmt.Fprintln(os.Stderr, "local user:", runLocalUser(os.Args[2]))
		os.Exit(1)
	}
	if len(os.Args) == 2 && os.Args[1] == "sleep" {
		select {}
	}
	if len(os.Args) > 3 && os.Args[1] == "gated" {
		fmt.Fprintln(os.Stderr, "gated:", runGated(os.Args[2], os.Args[3:]))
		os.Exit(1)
	}
	var o options
	flag.IntVar(&o.sequences, "n", 10, "how many sequences of faults")
	flag.Uint64Var(&o.seed, "seed", 0, "the seed of the first sequence, later ones count up; 0: one by the clock")
	flag.BoolVar(&o.kubelet, "kubelet", false, "against the kubelet's own device manager, without devmgrd")
	flag.BoolVar(&o.attacker, "attacker", false, "with a plugin pod, a tenant and a local user that attack devmgrd all the time")
	flag.BoolVar(&o.claims, "claims", false, "the resource is offered through DRA all the time, and no policy keeps containers from starting without devmgrd")
	flag.BoolVar(&o.verbose, "v", false, "tell each step as it is done, not only those of a sequence that has gone wrong")
	flag.StringVar(&o.logs, "logs", "", "keep the logs in this directory, which must exist")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: go run ./test/chaos [-n N] [-seed S] [-kubelet | -attacker | -claims] [-v] [-logs DIR]\n\n"+
			"Plays random sequences of faults on a real one-node Kubernetes that is made for it. Needs root.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if o.kubelet && (o.attacker || o.claims) {
		fmt.Fprintln(os.Stderr, "chaos: -attacker and -claims are about devmgrd, and with -kubelet there is none")
		os.Exit(2)
	}
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "chaos: there is no argument %q; see -help\n", flag.Arg(0))
		os.Exit(2)
	}
	cluster.Main(func() int { return inside(o) }, cluster.Needs(cluster.Kubernetes), node.Build)
}

// inside runs in the namespaces of the cluster.
func inside(o options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixMicro())
	}
	w, err := newWorld(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	status := w.play(ctx)
	if err := w.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		return 1
	}
	return status
}
