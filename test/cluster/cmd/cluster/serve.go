package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// serveCommand is what `up` leaves in the background: a cluster that lives until SIGTERM.
func serveCommand() *cobra.Command {
	var dir string
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
			cluster.Main(func() int {
				if err := serve(h); err != nil {
					fmt.Fprintln(os.Stderr, "cluster:", err)
					return 1
				}
				return 0
			})
			return nil
		},
	}
	dirFlag(cmd.Flags(), &dir)
	return cmd
}

func serve(h home) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, tools, cluster.Options{Dir: h.logs(), Log: os.Stderr})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return c.Stop()
}
