package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/machine"
)

// serveCommand is what `up` leaves in the background: a cluster that lives until SIGTERM.
func serveCommand() *cobra.Command {
	var dir string
	var asMachine bool
	cmd := &cobra.Command{
		Use:    "serve",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			h, err := newHome(dir)
			if err != nil {
				return err
			}
			signal.Reset() // cluster.Main passes signals on to serve, which is inside
			begin, start := func(run func() int) { cluster.Main(run, cluster.Needs(cluster.Kubernetes)) }, startCluster
			if asMachine {
				start = startMachine
				begin = func(run func() int) { machine.Main(machine.AppArmor, run) }
			}
			begin(func() int {
				if err := serve(h, start); err != nil {
					fmt.Fprintln(os.Stderr, "cluster:", err)
					return 1
				}
				return 0
			})
			return nil
		},
	}
	dirFlag(cmd.Flags(), &dir)
	cmd.Flags().BoolVar(&asMachine, "machine", false, "")
	return cmd
}

func serve(h home, start func(context.Context, home) (stop func() error, err error)) error {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer cancel()
	stop, err := start(ctx, h)
	if err != nil {
		return err
	}
	<-ctx.Done()
	return stop()
}

func startCluster(ctx context.Context, h home) (stop func() error, err error) {
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Start(ctx, tools, cluster.Options{Dir: h.logs(), Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	return c.Stop, nil
}

func startMachine(ctx context.Context, h home) (stop func() error, err error) {
	n, err := machine.StartNode(ctx, machine.NodeOptions{
		Cluster: cluster.Options{Dir: h.logs(), Log: os.Stderr}, Machine: machine.Options{Log: os.Stderr},
	})
	if err != nil {
		return nil, err
	}
	return n.Stop, nil
}
