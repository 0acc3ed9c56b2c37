package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/machine"
)

func upCommand() *cobra.Command {
	var dir string
	var asMachine bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a cluster up and leave it running",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := newHome(dir)
			if err != nil {
				return err
			}
			return up(cmd, h, asMachine)
		},
	}
	dirFlag(cmd.Flags(), &dir)
	cmd.Flags().BoolVar(&asMachine, "machine", false, "the node is a virtual machine that boots, with systemd and cgroup v2")
	return cmd
}

// up starts `serve` in the background and returns when its cluster is ready.
func up(cmd *cobra.Command, h home, asMachine bool) error {
	ctx := cmd.Context()
	if os.Geteuid() != 0 {
		return errors.New("this needs root, to make namespaces, mounts and cgroups")
	}
	if r, err := h.run(); err == nil {
		return fmt.Errorf("the cluster in %s is up already (run %s): `down` ends it", h, r.ID)
	}
	if _, err := cluster.Build(ctx, cmd.ErrOrStderr()); err != nil {
		return err
	}
	if err := errors.Join(h.empty(false), os.MkdirAll(h.logs(), 0o755)); err != nil {
		return err
	}
	log, err := os.Create(h.log())
	if err != nil {
		return err
	}
	defer log.Close()

	began := time.Now()
	server := exec.Command("/proc/self/exe", "serve", "--dir", string(h), fmt.Sprintf("--machine=%t", asMachine))
	server.Stdout, server.Stderr = log, log
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	var ready cluster.Run
	err = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(context.Context) (bool, error) {
		select {
		case err := <-ended:
			said, _ := os.ReadFile(h.log())
			return false, fmt.Errorf("the cluster did not come up: %w\n%s", err, said)
		default:
		}
		ready, err = readyRun(server.Process.Pid)
		return err == nil, nil
	})
	if ctx.Err() != nil { // Ctrl-C
		_ = server.Process.Signal(syscall.SIGTERM)
		<-ended
		return errors.Join(context.Cause(ctx), h.empty(true))
	}
	if err != nil {
		return err
	}
	if err := h.note(ready); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), `The node is Ready, after %s.

  export KUBECONFIG=%s
  kubectl get nodes

Logs are in %s.
`, time.Since(began).Round(100*time.Millisecond), h.kubeconfig(), h.logs())
	if asMachine {
		fmt.Fprintf(cmd.OutOrStdout(), "`cluster ssh` leads into the machine. Its console says what it has to in %s.\n", machine.ConsoleOf(ready))
	}
	return nil
}

// readyRun finds the run of a supervisor if its cluster is ready.
func readyRun(supervisor int) (cluster.Run, error) {
	runs, err := cluster.Runs()
	if err != nil {
		return cluster.Run{}, err
	}
	for _, r := range runs {
		if r.Supervisor == supervisor {
			_, err := os.Stat(r.Kubeconfig())
			return r, err
		}
	}
	return cluster.Run{}, errDown
}
