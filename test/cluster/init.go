package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// initialize is process 1 of the new namespaces: it furnishes them, starts the program and returns its exit status.
// With its own end, the kernel ends every process inside.
func initialize() int {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passed...)
	lifeline := os.NewFile(3, "lifeline")
	unix.CloseOnExec(3)
	if err := exchange(lifeline); err != nil {
		fail(fmt.Errorf("the supervisor has gone: %w", err))
	}
	go endWith(lifeline)

	r, err := CurrentRun()
	if err != nil {
		fail(err)
	}
	if err := furnish(r); err != nil {
		fail(fmt.Errorf("furnish the namespaces of run %s: %w", r.ID, err))
	}
	if err := r.account(); err != nil {
		fmt.Fprintln(os.Stderr, "cluster: no account by program:", err)
	}

	program, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(os.Environ(), stageVariable+"="+stageProgram),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		fail(fmt.Errorf("start the program inside: %w", err))
	}
	go func() {
		for s := range signals {
			_ = program.Signal(s)
		}
	}()
	return reap(program.Pid)
}

// reap waits for every child, also for orphans that became ours (containers' shims are), until the program ends.
func reap(program int) int {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			fail(fmt.Errorf("wait for the program: %w", err))
		case pid == program:
			return exitStatus(status)
		}
	}
}
