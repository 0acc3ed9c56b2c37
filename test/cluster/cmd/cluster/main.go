// Command cluster brings a one-node Kubernetes up for people, and takes it down again. See ../../README.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/cluster"
)

func main() {
	os.Exit(execute())
}

func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := command().ExecuteContext(ctx)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit): // of the command that `enter` ran, which has said why
		return exit.ExitCode()
	}
	fmt.Fprintln(os.Stderr, "cluster:", err)
	return 1
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "cluster",
		Short:         "A one-node Kubernetes on this machine, made of the real parts",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(upCommand(), downCommand(), statusCommand(), enterCommand(), sshCommand(), buildCommand(), serveCommand())
	return root
}

func buildCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "build",
		Short: "Build the programs and images that are not in the cache yet",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cluster.Build(cmd.Context(), cmd.ErrOrStderr())
			return err
		},
	}
}
