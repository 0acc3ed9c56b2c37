package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// janitorHandle is the supervisor's side of its janitor.
type janitorHandle struct {
	cmd  *exec.Cmd
	pipe *os.File // closed when the supervisor is done, or gone
}

// startJanitor starts the process that cleans up after a run, before there is anything to clean up. It outlives the
// supervisor and all processes that are killed with it.
func startJanitor(r Run) (*janitorHandle, error) {
	end, pipe, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer end.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), stageVariable+"="+stageJanitor, runVariable+"="+r.Dir)
	cmd.Stdin, cmd.Stderr = end, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		pipe.Close()
		return nil, err
	}
	return &janitorHandle{cmd: cmd, pipe: pipe}, nil
}

// finish lets the janitor clean up and waits until it has.
func (j *janitorHandle) finish() error {
	j.pipe.Close()
	return j.cmd.Wait()
}

// janitor is the process's body.
func janitor() int {
	signal.Ignore(passed...)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the supervisor has gone
	r := runAt(os.Getenv(runVariable))
	if err := r.remove(); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: clean up after run %s: %v\n", r.ID, err)
		return 1
	}
	return 0
}

// remove takes away what a dead run has left outside its namespaces. The kernel may still be ending its processes;
// as a rule nothing needs to be killed here.
func (r Run) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		if r.initAlive() {
			last = fmt.Errorf("process %d does not end", r.Init)
			_ = unix.Kill(r.Init, unix.SIGKILL)
			return false, nil
		}
		// init may be seen to end before the last of those that end with it.
		if left := r.processes(); len(left) > 0 {
			last = fmt.Errorf("processes %v do not end", left)
			return false, nil
		}
		emptyCgroup(r.cgroup())
		last = errors.Join(removeCgroups(r.cgroup(), true), os.RemoveAll(r.Dir))
		return last == nil, nil
	})
	if err != nil {
		return last
	}
	return nil
}

// sweep removes what is left of runs whose janitor died too, by a power cut for instance. It does no harm where a
// janitor is at work at the same time.
func sweep() {
	runs, err := allRuns()
	if err != nil {
		return
	}
	for _, r := range runs {
		if r.Alive() {
			continue
		}
		if err := r.remove(); err != nil {
			fmt.Fprintf(os.Stderr, "cluster: clean up after run %s: %v\n", r.ID, err)
		}
	}
}
