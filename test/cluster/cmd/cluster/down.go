package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/devmgrd/devmgrd/test/cluster"
)

func downCommand() *cobra.Command {
	var dir string
	var keepLogs bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "End the cluster and see that nothing of it is left",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := newHome(dir)
			if err != nil {
				return err
			}
			r, err := h.run()
			if errors.Is(err, errDown) {
				fmt.Fprintf(cmd.OutOrStdout(), "No cluster is up in %s.\n", h)
				return h.empty(keepLogs)
			}
			if err != nil {
				return err
			}
			if err := end(cmd.Context(), r); err != nil {
				return err
			}
			if err := h.empty(keepLogs); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "The cluster is gone: no process, mount, cgroup or directory of it is left.")
			return nil
		},
	}
	dirFlag(cmd.Flags(), &dir)
	cmd.Flags().BoolVar(&keepLogs, "keep-logs", false, "leave the logs where they are")
	return cmd
}

// end asks a run to end, kills it if it has not after a while, and waits until nothing of it is left.
func end(ctx context.Context, r cluster.Run) error {
	if err := syscall.Kill(r.Supervisor, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("end run %s: %w", r.ID, err)
	}
	if gone(ctx, r, 30*time.Second) {
		return nil
	}
	if err := syscall.Kill(r.Supervisor, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill run %s: %w", r.ID, err)
	}
	if gone(ctx, r, 30*time.Second) {
		return nil
	}
	return fmt.Errorf("end run %s: this is left of it: %s", r.ID, strings.Join(r.Leftovers(), ", "))
}

func gone(ctx context.Context, r cluster.Run, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		return r.Over(), nil
	}) == nil
}
