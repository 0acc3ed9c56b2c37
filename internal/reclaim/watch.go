package reclaim

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
)

// watchLocked has a search begin as soon as one of the processes ends. Those of another PID namespace are not watched.
func (g *Gate) watchLocked(p *proof, processes []openers.Process) {
	ctx, cancel := context.WithCancel(p.ctx)
	last := p.unwatch
	p.unwatch = cancel
	if last != nil {
		last()
	}
	for _, one := range processes {
		g.work.Go(func() {
			fd, err := unix.PidfdOpen(one.PID, unix.PIDFD_NONBLOCK)
			if err != nil {
				return
			}
			if openers.Started(one.PID) != one.Started {
				unix.Close(fd) // another process with that number, or in another PID namespace
				return
			}
			if ended(ctx, fd) {
				g.mu.Lock()
				p.due, p.retries = time.Now(), 0
				g.mu.Unlock()
				loops.Signal(g.wake)
			}
		})
	}
}

// ended waits for the end of a process, and closes its descriptor. It returns false if ctx ends first.
func ended(ctx context.Context, pidfd int) bool {
	f := os.NewFile(uintptr(pidfd), "pidfd")
	defer f.Close()
	defer context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	gone := false
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0
		return gone
	})
	return err == nil && gone
}
