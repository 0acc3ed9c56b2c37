package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// A Process is one program that can be started, stopped, killed, frozen and started again. Its output is appended
// to one log file. A Process may be used by several goroutines.
type Process struct {
	Name string

	logPath string
	argv    []string
	env     []string

	mu   sync.Mutex // guards life
	life *life      // the latest start; nil before the first
}

// life is one operating system process, from its start to its end.
type life struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when err is set
	err   error
}

// NewProcess describes a process; nothing runs yet. A nil env is the caller's environment.
func NewProcess(name, logPath string, argv, env []string) *Process {
	return &Process{Name: name, logPath: logPath, argv: argv, env: env}
}

// Start starts the process and does not wait for it to be ready. Starting a running process is an error.
func (p *Process) Start(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.life != nil && !p.life.over() {
		return fmt.Errorf("start %s: it is running already", p.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.logPath), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	log, err := os.OpenFile(p.logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	defer log.Close() // the process has its own copy

	cmd := exec.Command(p.argv[0], p.argv[1:]...)
	cmd.Env = p.env
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's Ctrl-C is ours to handle
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	l := &life{cmd: cmd, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		l.err = cmd.Wait()
	}()
	p.life = l
	return nil
}

// Stop asks the process to end (SIGTERM) and kills it when it has not after the timeout, which is an error. It
// returns when the process is gone; a process that does not run is stopped already.
func (p *Process) Stop(timeout time.Duration) error {
	l := p.current()
	if l == nil || l.over() {
		return nil
	}
	if err := l.signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-l.ended:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("stop %s: still there %s after SIGTERM, so it was killed\n%s", p.Name, timeout, p.tail()), p.Kill())
	}
}

// Kill ends the process with SIGKILL and returns when it is gone.
func (p *Process) Kill() error {
	l := p.current()
	if l == nil || l.over() {
		return nil
	}
	if err := l.signal(syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill %s: %w", p.Name, err)
	}
	<-l.ended
	return nil
}

// Signal sends any signal, for instance SIGSTOP and SIGCONT.
func (p *Process) Signal(s os.Signal) error {
	l := p.current()
	if l == nil || l.over() {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, os.ErrProcessDone)
	}
	if err := l.signal(s); err != nil {
		return fmt.Errorf("send %s to %s: %w", s, p.Name, err)
	}
	return nil
}

// Wait returns when the process has ended, with the error of [exec.Cmd.Wait], or when ctx ends.
func (p *Process) Wait(ctx context.Context) error {
	l := p.current()
	if l == nil {
		return fmt.Errorf("wait for %s: it was never started", p.Name)
	}
	select {
	case <-l.ended:
		return l.err
	case <-ctx.Done():
		return fmt.Errorf("wait for %s: %w", p.Name, context.Cause(ctx))
	}
}

// Running says whether the process has been started and has not ended.
func (p *Process) Running() bool {
	l := p.current()
	return l != nil && !l.over()
}

// Pid is the process ID of the latest start; 0 before the first.
func (p *Process) Pid() int {
	if l := p.current(); l != nil {
		return l.cmd.Process.Pid
	}
	return 0
}

// LogPath is the file that the process's output goes to.
func (p *Process) LogPath() string { return p.logPath }

func (p *Process) current() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// tail is the end of the log, set off so that it can follow an error's text.
func (p *Process) tail() string {
	log, err := os.ReadFile(p.logPath)
	if err != nil {
		return fmt.Sprintf("(no log of %s: %v)", p.Name, err)
	}
	return fmt.Sprintf("--- the end of %s\n%s\n---", p.logPath, lastLines(string(log), 20))
}

func (l *life) over() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// signal treats a process that has ended in the meantime as a success.
func (l *life) signal(s os.Signal) error {
	if err := l.cmd.Process.Signal(s); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}
