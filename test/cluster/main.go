package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Main runs the calling program inside namespaces of its own and exits with what run returns. It must be the first
// thing that the program does that has an effect, for instance:
//
//	func TestMain(m *testing.M) { cluster.Main(m.Run, cluster.Needs(cluster.Kubernetes)) }
//
// The program is executed once for each of these, with the same arguments, and told by its environment who it is:
//
//	supervisor   outside: calls before, forwards signals, lends the API server an address
//	├─ janitor   outside, in a session of its own: removes what is left when the supervisor is gone, however it went
//	└─ init      inside, process 1: makes the mounts, reaps orphans; the kernel ends it with the supervisor
//	   └─ the program itself, inside: run
//
// The functions in before run outside, where the network is, such as [Needs], which builds the tools. There is no network inside but
// loopback.
func Main(run func() int, before ...func(context.Context) error) {
	runtime.LockOSThread() // the kernel ends init when the *thread* that started it ends
	stage := os.Getenv(stageVariable)
	if err := os.Unsetenv(stageVariable); err != nil { // a program started from here begins at the beginning
		fail(err)
	}
	switch stage {
	case "":
		os.Exit(supervise(before))
	case stageJanitor:
		os.Exit(janitor())
	case stageInit:
		os.Exit(initialize())
	case stageProgram:
		runtime.UnlockOSThread()
		os.Exit(run())
	default:
		fail(fmt.Errorf("%s=%s is no stage of a run", stageVariable, stage))
	}
}

const (
	stageVariable = "TESTCLUSTER_STAGE"
	stageJanitor  = "janitor"
	stageInit     = "init"
	stageProgram  = "program"
)

// exitFailed is the status of a program that could not run at all.
const exitFailed = 125

// passed are the signals that people and tools send to a program to end it.
var passed = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "cluster:", err)
	os.Exit(exitFailed)
}

func supervise(before []func(context.Context) error) int {
	if os.Geteuid() != 0 {
		fail(errors.New("this needs root, to make namespaces, mounts and cgroups: run it with `sudo --preserve-env=PATH,HOME`"))
	}
	if err := prepare(before); err != nil {
		fail(err)
	}
	r, err := planRun()
	if err != nil {
		fail(fmt.Errorf("begin a run: %w", err))
	}
	j, err := startJanitor(r)
	if err != nil {
		fail(fmt.Errorf("start the janitor of run %s: %w", r.ID, err))
	}
	status, err := r.live()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		status = exitFailed
	}
	if err := j.finish(); err != nil {
		fmt.Fprintf(os.Stderr, "cluster: the janitor of run %s: %v\n", r.ID, err)
		status = max(status, 1)
	}
	return status
}

// prepare does what needs the network.
func prepare(before []func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), passed...)
	defer stop()
	for _, f := range before {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// live makes what the run needs outside the namespaces, and then the namespaces. It returns the program's status.
func (r Run) live() (int, error) {
	held, err := r.begin()
	if err != nil {
		return 0, fmt.Errorf("begin run %s: %w", r.ID, err)
	}
	defer runtime.KeepAlive(held) // the janitor, too, works under this lock, which ends with the process
	if err := makeCgroup(r.cgroup()); err != nil {
		return 0, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("listen for connections to the API server: %w", err)
	}
	defer listener.Close()
	r.API = listener.Addr().String()
	return r.isolate(listener)
}

// isolate starts init in new namespaces and waits for it.
func (r Run) isolate(listener net.Listener) (int, error) {
	ours, inits, err := socketPair()
	if err != nil {
		return 0, fmt.Errorf("start the first process of run %s: %w", r.ID, err)
	}
	defer ours.Close()

	cmd := exec.Command("/proc/self/exe")
	cmd.Args = os.Args
	cmd.Env = append(os.Environ(), stageVariable+"="+stageInit, runVariable+"="+r.Dir)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{inits}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true, // a terminal's Ctrl-C reaches the program once, through us
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, passed...)
	err = cmd.Start()
	inits.Close()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) {
		return 0, fmt.Errorf("make process, mount, network, IPC and UTS namespaces, "+
			"which the kernel or a container around this forbids: %w", err)
	}
	if err != nil {
		return 0, fmt.Errorf("start the first process of run %s: %w", r.ID, err)
	}

	r.Init = cmd.Process.Pid
	r.InitStart, _ = startOf(r.Init)
	if err := r.write(); err != nil {
		return 0, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	go forward(listener, r.Init)
	go func() {
		// The kernel drops signals for a process 1 that does not await them yet. An error means that init has ended.
		if exchange(ours) != nil {
			return
		}
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()

	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	if os.Getenv(AccountVariable) != "" {
		fmt.Fprintln(os.Stderr, r.processorTime(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
	}
	return exitStatus(cmd.ProcessState.Sys().(syscall.WaitStatus)), nil
}

// exitStatus turns a wait status into a shell's $?.
func exitStatus(w syscall.WaitStatus) int {
	if w.Signaled() {
		return 128 + int(w.Signal())
	}
	return w.ExitStatus()
}
