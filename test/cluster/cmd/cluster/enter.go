package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/test/cluster"
)

func enterCommand() *cobra.Command {
	var id string
	cmd := &cobra.Command{
		Use:   "enter [-- COMMAND...]",
		Short: "Run a shell or a command inside a cluster's namespaces",
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := findRun(id)
			if err != nil {
				return err
			}
			tools, err := cluster.Build(cmd.Context(), cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = []string{shell()}
			}
			return enter(r, tools, args)
		},
	}
	cmd.Flags().StringVar(&id, "run", "", "which run, of those that `cluster status` lists (default: the only one)")
	return cmd
}

// enter uses nsenter of util-linux. A signal from the terminal reaches the command without help.
func enter(r cluster.Run, tools cluster.Tools, args []string) error {
	flags := []string{"--target", strconv.Itoa(r.Init), "--mount", "--uts", "--ipc", "--net", "--pid", "--"}
	cmd := exec.Command("nsenter", append(flags, args...)...)
	cmd.Env = append(os.Environ(),
		"PATH="+tools.SearchPath(os.Getenv("PATH")), "KUBECONFIG=/etc/kubernetes/admin.conf", "TMPDIR=/tmp")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("enter run %s: %w", r.ID, err)
	}
	return nil
}

func shell() string {
	if s := os.Getenv("SHELL"); s != "" {
		return s
	}
	return "/bin/sh"
}
