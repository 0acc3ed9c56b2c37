package openers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	patience   = 3 * time.Second // without progress at one process, which then counts as unknown; less after each such process of a scan
	shrinks    = 20              // times, at most
	maxBlocked = 128             // pods, and processes outside of pods, that block a thread each
	exitLimit  = time.Second     // in which processes that exit may end before they count as unknown
	maxRounds  = 4               // of looking for processes that have started during the scan

	// The kernel fixes the inodes of the first namespaces (linux/proc_ns.h).
	firstPIDNamespace  = "pid:[4026531836]"
	firstUserNamespace = "user:[4026531837]"
)

// A finder makes scans, and remembers the processes that block threads of earlier ones.
type finder struct {
	proc      string
	patience  time.Duration
	exitLimit time.Duration
	maxFiles  int

	mu      locks.Mutex[locks.Leaf] // guards blocked, and the record of the scan
	blocked map[int]device.PodUID   // PIDs for which a thread still waits, with their pods
}

func newFinder(proc string) *finder {
	return &finder{proc: proc, patience: patience, exitLimit: exitLimit, maxFiles: maxFiles, blocked: map[int]device.PodUID{}}
}

// find looks for the openers of devices, which are 1024 at most, among all processes of proc. That is "/proc", or another mount of
// that file system. The calling process is left out. Only one call may run at a time.
//
// It fails if it lacks a capability, if proc hides processes, if more than 64 processes outside of pods are unknown, and with ctx. It then
// knows nothing of any device: the Scan has only its CPU time. When ctx ends, find returns at once, or within 3 s if a process blocks it.
func (f *finder) find(ctx context.Context, devices []Device) (Scan, error) {
	scan, err := f.search(ctx, devices)
	if err != nil {
		return Scan{CPU: scan.CPU}, fmt.Errorf("looking for openers of devices: %w", err)
	}
	return scan, nil
}

func (f *finder) search(ctx context.Context, devices []Device) (Scan, error) {
	switch {
	case len(devices) == 0:
		return Scan{}, fmt.Errorf("no device in the request")
	case len(devices) > MaxDevices:
		return Scan{}, fmt.Errorf("%d devices in the request: the limit is %d", len(devices), MaxDevices)
	}
	self, namespace, err := f.visible()
	if err != nil {
		return Scan{}, err
	}
	r := newRecord(devices)
	if namespace != firstPIDNamespace {
		r.scan.Namespace = namespace
	}
	for {
		w := newWorker(ctx, f, r, self)
		f.mu.Lock()
		r.owner = w
		f.mu.Unlock()
		go w.run() // it ends with ctx and with the scan; when a process blocks it, with that process
		blocked, pid := f.wait(w)
		switch {
		case !blocked && w.err != nil:
			return r.scan, w.err
		case !blocked:
			return r.scan, nil
		case ctx.Err() != nil:
			return r.scan, ctx.Err()
		case pid == 0:
			return r.scan, fmt.Errorf("%s does not list processes: no answer within %v", f.proc, f.patience)
		}
		if err := f.pass(r, pid); err != nil {
			return r.scan, err
		}
	}
}

// visible checks that proc shows this process and others, and returns this process's name there, and its PID namespace.
func (f *finder) visible() (self, namespace string, err error) {
	if self, err = os.Readlink(filepath.Join(f.proc, "self")); err != nil {
		return "", "", fmt.Errorf("this process is not in %s: %w", f.proc, err)
	}
	namespace, err = os.Readlink(filepath.Join(f.proc, "self", "ns", "pid"))
	if err != nil {
		return "", "", err
	}
	if _, err := os.Lstat(filepath.Join(f.proc, "1", "fd")); err != nil {
		return "", "", fmt.Errorf("process 1 is not visible, as with the mount option hidepid of %s: %w%s", f.proc, err, lacking())
	}
	return self, namespace, nil
}

// wait returns when a worker has ended. It deprives the worker of its record if a process blocks it, or takes it very long. PID 0: the list of
// processes.
func (f *finder) wait(w *worker) (blocked bool, pid int) {
	look := time.NewTicker(f.patience / (2 * shrinks))
	defer look.Stop()
	last, since := w.steps.Load(), time.Now()
	for {
		select {
		case <-w.done:
			return false, 0
		case now := <-look.C:
			if steps := w.steps.Load(); steps != last {
				last, since = steps, now
			}
			f.mu.Lock()
			r := w.record
			if w.steps.Load() == last && now.Sub(since) >= f.patienceOf(r) || r.current != 0 && now.Sub(r.since) >= 2*f.patienceOf(r) {
				r.owner = nil
				w.lost.Store(true)
				r.scan.CPU += w.used()
				if pid = r.current; pid != 0 {
					f.blocked[pid] = ""
					r.slow++
				}
				f.mu.Unlock()
				return true, pid
			}
			f.mu.Unlock()
		}
	}
}

// patienceOf returns for how long a scan waits for one process. It gets less with each that it has waited for: any number of pods may be slow.
func (f *finder) patienceOf(r *record) time.Duration {
	return f.patience / time.Duration(min(1+r.slow, shrinks))
}

// spentLocked adds to the time that a pod has taken of the scan.
func (r *record) spentLocked(w *worker) {
	r.files[w.pod] += w.spent
	if w.pod != "" {
		r.took[w.pod] += time.Since(r.since)
	}
	r.current = 0
}

// pass records a process that blocks a worker.
func (f *finder) pass(r *record, pid int) error {
	f.mu.Lock()
	n := len(f.blocked)
	f.mu.Unlock()
	if n > maxBlocked {
		return fmt.Errorf("%d processes block a thread each, the last of them process %d", n, pid)
	}
	process := describeBriefly(f.proc, pid)
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, still := f.blocked[pid]; still {
		f.blocked[pid] = cgroups.PodOf(process.Cgroup)
	}
	return r.addUnknown(process, "blocks the scan")
}

// isBlocked reports whether a thread of an earlier scan still waits for a process.
func (f *finder) isBlocked(pid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, is := f.blocked[pid]
	return is
}

// share returns how many files of a pod are left for the scan to look at. unknown: the pod is already. blocks: a thread waits for one of its
// processes. slow: they have taken the scan too long.
func (f *finder) share(r *record, pod device.PodUID) (left int, unknown, blocks, slow bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if pod == "" {
		return f.maxFiles, false, false, false
	}
	for _, of := range f.blocked {
		blocks = blocks || of == pod
	}
	if slow = !r.unknown[pod] && r.took[pod] >= 2*f.patienceOf(r); slow {
		r.slow++
	}
	return f.maxFiles - r.files[pod], r.unknown[pod], blocks, slow
}

// next returns a worker's next process. It is false at the end of the round, and if the worker has lost its record.
func (f *finder) next(w *worker) (pid int, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := w.record
	if r.owner != w || len(r.queue) == 0 {
		return 0, false
	}
	r.current, r.since, r.queue = r.queue[0], time.Now(), r.queue[1:]
	r.scan.Processes++
	return r.current, true
}

// nextUnseen returns the next process that a worker looks at again. It is false after the last one, and if the worker has lost its record.
func (f *finder) nextUnseen(w *worker) (u unseen, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := w.record
	for r.owner == w && len(r.unseen) > 0 {
		u, r.unseen = r.unseen[0], r.unseen[1:]
		if !r.unknown[u.pod] {
			r.current, r.since = u.pid, time.Now()
			if u.exiting {
				r.since = r.since.Add(f.exitLimit) // for which the worker waits first
			}
			return u, true
		}
	}
	return u, false
}

// later has a process looked at again at the end of the scan. It is false if the worker has lost its record.
func (f *finder) later(w *worker, u unseen) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := w.record
	if r.owner != w {
		return false
	}
	r.spentLocked(w)
	r.unseen = append(r.unseen, u)
	return true
}

// add completes a process in a worker's record. It is false if the worker has lost its record.
func (f *finder) add(w *worker, process Process, holds []hold, reason string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := w.record
	if r.owner != w {
		return false, nil
	}
	r.spentLocked(w)
	switch over := w.spent > max(w.left, 0); {
	case over && w.pod == "":
		r.scan.Over += w.spent
	case over:
		r.scan.Over += r.files[w.pod]
	}
	for _, h := range holds {
		r.addOpener(process, h)
	}
	if reason != "" {
		return true, r.addUnknown(process, reason)
	}
	return true, nil
}

// extend begins a round with the processes that the scan has not seen. It is false if there are none, or the rounds are used up.
func (f *finder) extend(w *worker, pids []int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := w.record
	if r.owner != w || r.rounds == maxRounds {
		return false
	}
	r.rounds++
	r.queue = pids[:0]
	for _, pid := range pids {
		if !r.seen.add(pid) {
			r.queue = append(r.queue, pid)
		}
	}
	return len(r.queue) > 0
}

// end adds up a worker's work. A worker that was blocked frees its process for the next scan.
func (f *finder) end(w *worker, cpu time.Duration, pid int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.record.owner != w {
		delete(f.blocked, pid)
		return
	}
	w.record.scan.CPU += cpu
	w.record.scan.Files += w.files
}
