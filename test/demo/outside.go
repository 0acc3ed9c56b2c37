package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// These variables are for the process inside: the act, and the file in which it notes for the one outside which run it is in.
const (
	actVariable  = "TESTDEMO_ACT"
	noteVariable = "TESTDEMO_NOTE"
)

// outside runs this program once more for each act, or for one only, and looks afterwards whether anything of it is left on the machine.
// It returns the exit status.
func outside(only int) int {
	for act := 1; act <= 2; act++ {
		if only != 0 && act != only {
			continue
		}
		status, err := supervise(act)
		if err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return max(status, 1)
		}
		if status != 0 {
			return status
		}
	}
	return 0
}

func supervise(act int) (status int, err error) {
	dir, err := os.MkdirTemp("/tmp", "devmgrd-demo-") // what is in /tmp before the run begins can be written from inside
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	note := filepath.Join(dir, "run.json")

	runtime.LockOSThread() // the kernel tells the child when the thread that started it ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), noteVariable+"="+note, fmt.Sprintf("%s=%d", actVariable, act))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // a terminal's Ctrl-C reaches the story once, through us
		Pdeathsig: syscall.SIGTERM,
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended already
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 1, err
	}
	if cmd.ProcessState.ExitCode() != 0 {
		status = max(cmd.ProcessState.ExitCode(), 1) // -1: a signal has ended it
	}
	return status, lookForLeftovers(note)
}

// lookForLeftovers says what the run has left on the machine, if it has begun at all.
func lookForLeftovers(note string) error {
	content, err := os.ReadFile(note)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var run cluster.Run
	if err := json.Unmarshal(content, &run); err != nil {
		return fmt.Errorf("reading which run it was: %w", err)
	}
	p := newPage(os.Stdout)
	if left := run.Leftovers(); len(left) > 0 {
		p.say("Left on this machine:")
		p.show(left...)
		return errors.New("something is left of the run; see above")
	}
	p.say("Looked for its processes, namespaces, cgroups and files: nothing is left on this machine.")
	p.gap()
	return nil
}

// noteRun tells the process outside which run this is.
func noteRun() error {
	run, err := cluster.CurrentRun()
	if err != nil {
		return err
	}
	content, err := json.Marshal(run)
	if err != nil {
		return err
	}
	return os.WriteFile(os.Getenv(noteVariable), content, 0o600)
}
