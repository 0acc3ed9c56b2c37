package openers

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	ctxEvery  = 1024 // files between looks at the context, within one process
	lines     = 16   // of maps cost as much as a file
	maxTables = 16   // tables of one process's threads that are compared with further threads
)

// A worker looks at one process after the other, in a thread of its own. Its buffers serve all processes.
type worker struct {
	ctx    context.Context
	finder *finder
	record *record
	self   string // this process in proc

	steps atomic.Uint64 // rises with each file
	lost  atomic.Bool   // another worker has the record
	began atomic.Int64  // the CPU time of the thread at its beginning
	clock atomic.Int32  // of the thread's CPU time; 0: it has not begun
	done  chan struct{} // closed at the end
	err   error         // valid when done is closed

	root  int // proc
	kcmp  bool
	exits time.Time // when processes that exit are waited for no longer; zero: none has been
	pid   int       // the process at hand
	dir   int       // its directory in proc
	pod   device.PodUID
	left  int // the files that are left of the pod's share
	spent int // of these
	files int
	lines int // of maps
	holds []hold

	path    name
	entries []byte // of proc/PID/fd
	tasks   []byte // of proc/PID/task
	text    []byte // proc/PID/maps, and other files
	tables  []int  // threads with tables of their own

	seed   maphash.Seed
	looked map[uint64]struct{} // mapped files of the process at hand, by the hash of their identity
	missed map[uint64]struct{} // those whose memory has moved meanwhile
	again  map[uint64]struct{} // the missed ones of the pass before
}

func newWorker(ctx context.Context, f *finder, r *record, self string) *worker {
	return &worker{
		ctx: ctx, finder: f, record: r, self: self, done: make(chan struct{}),
		path: make(name, 0, 64), entries: make([]byte, 32<<10), tasks: make([]byte, 32<<10), text: make([]byte, 64<<10), seed: maphash.MakeSeed(),
		looked: map[uint64]struct{}{}, missed: map[uint64]struct{}{}, again: map[uint64]struct{}{},
	}
}

// run is the worker's goroutine.
func (w *worker) run() {
	defer close(w.done)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	clock := threadClock(unix.Gettid())
	w.began.Store(int64(cpuTime(clock)))
	w.clock.Store(clock)
	w.err = w.scan()
	w.finder.end(w, w.used(), w.pid)
	w.steps.Add(1)
}

// used returns the worker's CPU time so far. Its thread must not have ended.
func (w *worker) used() time.Duration {
	clock := w.clock.Load()
	if clock == 0 {
		return 0
	}
	return cpuTime(clock) - time.Duration(w.began.Load())
}

// threadClock returns the clock of a thread's CPU time: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED of linux/posix-timers.h.
func threadClock(tid int) int32 { return int32(^tid<<3 | 6) }

func cpuTime(clock int32) time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(clock, &t) // it fails for bad arguments only
	return time.Duration(t.Nano())
}

// scan looks at all processes, and then at those that have started meanwhile: the last holder of a device may fork and exit. At the end it
// looks again at those that it could not see in full: most of those that were exiting have ended, and memory that was changing rests.
func (w *worker) scan() (err error) {
	w.root, err = unix.Open(w.finder.proc, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("%s: %w", w.finder.proc, err)
	}
	defer unix.Close(w.root)
	self, _ := strconv.Atoi(w.self)
	w.kcmp = self == unix.Getpid() // else proc is of another PID namespace, and its PIDs are not those that kcmp takes
	for more := true; more; {
		for { // at first, what an earlier worker has left
			if err := w.ctx.Err(); err != nil {
				return err
			}
			pid, ok := w.finder.next(w)
			if !ok {
				break
			}
			if ok, err := w.process(pid, false); err != nil || !ok {
				return err
			}
		}
		pids, err := w.processes(self)
		if err != nil {
			return fmt.Errorf("listing %s: %w", w.finder.proc, err)
		}
		more = w.finder.extend(w, pids)
	}
	for {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		u, ok := w.finder.nextUnseen(w)
		if !ok {
			return nil
		}
		if u.exiting {
			w.awaitEnd(u.pid)
		}
		if ok, err := w.process(u.pid, true); err != nil || !ok {
			return err
		}
	}
}

// awaitEnd waits for the end of a process. All that exit have exitLimit together.
func (w *worker) awaitEnd(pid int) {
	if !w.kcmp {
		return // pidfd_open takes PIDs of this process's namespace, too
	}
	if w.exits.IsZero() {
		w.exits = time.Now().Add(w.finder.exitLimit)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for left := time.Until(w.exits); left > 0; left = time.Until(w.exits) {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1); err != unix.EINTR {
			return
		}
	}
}

// processes lists proc.
func (w *worker) processes(self int) (pids []int, err error) {
	if _, err := unix.Seek(w.root, 0, 0); err != nil {
		return nil, err
	}
	err = eachEntry(w.root, w.entries, func(n name) error {
		if pid := number(n); pid > 0 && pid != self {
			pids = append(pids, pid)
		}
		return nil
	})
	return pids, err
}

// process looks at a process and adds it to the record, or has it looked at again at the end unless this is the last look. It is false if the
// worker has lost its record.
func (w *worker) process(pid int, last bool) (bool, error) {
	w.pid, w.pod, w.spent, w.holds = pid, "", 0, w.holds[:0]
	w.steps.Add(1)
	if w.finder.isBlocked(pid) {
		return w.finder.add(w, describeBriefly(w.finder.proc, pid), nil, "has blocked an earlier scan, which still waits")
	}
	dir, err := openAt(w.root, w.named("", pid, ""), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return w.add(-1, w.unread("", err), last)
	}
	defer unix.Close(dir)
	w.dir = dir
	path, err := cgroup(dir, w.text)
	if err != nil {
		return w.add(dir, w.unread("cgroup", err), last)
	}
	w.pod = cgroups.PodOf(path)
	left, unknown, blocks, slow := w.finder.share(w.record, w.pod)
	w.left = left
	switch {
	case unknown:
		return w.add(dir, nil, last)
	case blocks:
		return w.add(dir, &unseenError{reason: "is of a pod that has blocked an earlier scan, which still waits", final: true}, last)
	case slow:
		return w.add(dir, &unseenError{reason: "takes the scan too long, with its pod's other processes", final: true}, last)
	}
	living, err := w.look()
	if living >= 0 {
		defer unix.Close(living)
		return w.add(living, err, last)
	}
	return w.add(dir, err, last)
}

// spend takes a file, or what costs as much, from the pod's share.
func (w *worker) spend() error {
	w.steps.Add(1)
	if w.lost.Load() {
		return errLost
	}
	w.files++
	if w.files%ctxEvery == 0 && w.ctx.Err() != nil {
		return w.ctx.Err()
	}
	w.spent++
	if w.spent <= w.left {
		return nil
	}
	reason := fmt.Sprintf("has more than %d files open or mapped", w.finder.maxFiles)
	if w.pod != "" {
		reason += ", with its pod's other processes"
	}
	return &unseenError{reason: reason, final: true}
}

// look finds the devices of the process at hand. If the first thread has ended and others live, it returns the open directory of
// one of those, and otherwise -1.
func (w *worker) look() (living int, err error) {
	if err := w.descriptors(name("fd\x00")); err != nil {
		return -1, err
	}
	alone, err := w.alone()
	if err != nil {
		return -1, err
	}
	if !alone {
		if err := w.otherTables(); err != nil {
			return -1, err
		}
	}
	switch mapped, err := w.mappings(w.dir); {
	case err != nil || mapped:
		return -1, err
	case alone:
		return -1, w.ended()
	}
	living = -1
	err = w.eachThread(func(tid int) error {
		if living >= 0 || tid == w.pid {
			return nil
		}
		// The directory of a thread is not listed in proc, and has what that of a process has.
		thread, err := openAt(w.root, w.named("", tid, ""), unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return unlessGone(w.unread("", err))
		}
		mapped, err := w.mappings(thread)
		if err == nil && mapped {
			living = thread
			return nil
		}
		unix.Close(thread)
		return unlessGone(err)
	})
	if err != nil || living >= 0 {
		return living, err
	}
	return -1, w.ended()
}

// add adds the process at hand to the record, with its names from a directory of proc, and with the error of its examination.
func (w *worker) add(dir int, err error, last bool) (bool, error) {
	var not *unseenError
	switch {
	case gone(err):
		return w.finder.add(w, Process{}, nil, "")
	case err != nil && !errors.As(err, &not):
		return false, err
	case not != nil && !not.final && !last:
		return w.finder.later(w, unseen{w.pid, w.pod, not.exiting}), nil
	case err == nil && len(w.holds) == 0:
		return w.finder.add(w, Process{}, nil, "")
	}
	reason := ""
	if not != nil {
		reason = not.reason
	}
	process, err := describe(dir, w.pid, w.text)
	if gone(err) {
		return w.finder.add(w, Process{}, nil, "")
	}
	if err != nil && reason == "" {
		reason = err.Error()
	}
	return w.finder.add(w, process, w.holds, reason)
}

// errLost ends a worker that another one has replaced.
var errLost = errors.New("another worker goes on")

// An unseenError reports that the process at hand may hold any device.
type unseenError struct {
	reason  string
	exiting bool
	final   bool // another look would add nothing
}

func (e *unseenError) Error() string { return e.reason }

// unread returns the error for a file of the process at hand: the same one if the process has ended, an *unseenError if only this process
// cannot be examined, and another one if the scan cannot examine any.
func (w *worker) unread(file string, err error) error {
	switch {
	case gone(err):
		return err
	case denied(err) && lacking() != "":
		return fmt.Errorf("reading %s/%d/%s: %w%s", w.finder.proc, w.pid, file, err, lacking())
	}
	return &unseenError{reason: fmt.Sprintf("cannot be read: %s: %v", file, err)}
}

// unlessGone drops an error that reports the end of a thread or a descriptor, rather than of the process.
func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// named returns a path of three parts, the second a number. It is valid until the next call.
func (w *worker) named(before string, n int, after string) name {
	w.path = append(strconv.AppendInt(append(w.path[:0], before...), int64(n), 10), after...)
	w.path = append(w.path, 0)
	return w.path
}
