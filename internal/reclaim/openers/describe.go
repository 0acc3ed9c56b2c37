package openers

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// describe returns the names of a process from its directory in proc, or that of one of its threads. It fails if the process has ended.
func describe(dir, pid int, buffer []byte) (Process, error) {
	p := Process{PID: pid}
	text, err := readAt(dir, name("stat\x00"), buffer)
	if err != nil {
		return p, err
	}
	s, err := parseStatus(text)
	if err != nil {
		return p, err
	}
	p.Started, p.Command = s.started, s.command
	p.Cgroup, err = cgroup(dir, buffer)
	if err != nil {
		return p, err
	}
	p.Root = isRoot(dir, buffer)
	var file unix.Statx_t // without an executable, or one that may be read, the names have to do
	if statAt(dir, name("exe\x00"), unix.STATX_INO, &file) == nil {
		p.ExeFile = File{Device: unix.Mkdev(file.Dev_major, file.Dev_minor), Inode: file.Ino}
	}
	return p, nil
}

// isRoot reports whether a process's effective user is root of the machine's first user namespace.
func isRoot(dir int, buffer []byte) bool {
	text, err := readAt(dir, name("status\x00"), buffer)
	if err != nil {
		return false
	}
	_, ids, _ := bytes.Cut(text, []byte("\nUid:")) // real, effective and further ones
	fields := bytes.Fields(ids)
	if len(fields) < 2 || string(fields[1]) != "0" {
		return false
	}
	return userNamespace(dir) == firstUserNamespace
}

// userNamespace returns the user namespace of a process, by its directory in proc; empty: not known.
func userNamespace(dir int) string {
	buffer := make([]byte, 64)
	n, err := unix.Readlinkat(dir, "ns/user", buffer)
	if err != nil {
		return ""
	}
	return string(buffer[:n])
}

// describeBriefly returns the names of a process that blocks the scan, as far as they do not depend on its memory.
func describeBriefly(proc string, pid int) Process {
	p := Process{PID: pid}
	dir, err := unix.Open(proc+"/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return p
	}
	defer unix.Close(dir)
	buffer := make([]byte, 16<<10)
	if text, err := readAt(dir, name("stat\x00"), buffer); err == nil {
		if s, err := parseStatus(text); err == nil {
			p.Started, p.Command = s.started, s.command
		}
	}
	p.Cgroup, _ = cgroup(dir, buffer)
	return p
}

// Started returns when a process of /proc started, in clock ticks since the boot; 0: not known.
func Started(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	s, _ := parseStatus(text)
	return s.started
}

// A status is what /proc/PID/stat says of a process or thread.
type status struct {
	command string
	kernel  bool   // a thread of the kernel
	closed  bool   // a zombie: it has closed its files
	started uint64 // in clock ticks since the boot
}

// parseStatus reads /proc/PID/stat. The command may contain any byte, parentheses included.
func parseStatus(text []byte) (s status, err error) {
	const kernelThread = 0x00200000              // PF_KTHREAD of linux/sched.h
	const stateAt, flagsAt, startedAt = 0, 6, 19 // after the command: the fields 3, 9 and 22 of proc_pid_stat(5)
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return s, errors.New("no command in stat")
	}
	fields := strings.Fields(string(text[to+1:]))
	if len(fields) <= startedAt {
		return s, fmt.Errorf("%d fields in stat", len(fields)+2)
	}
	flags, err := strconv.ParseUint(fields[flagsAt], 10, 64)
	if err != nil {
		return s, err
	}
	s.command, s.kernel = string(text[from+1:to]), flags&kernelThread != 0
	s.closed = strings.Contains("ZXx", fields[stateAt])
	s.started, err = strconv.ParseUint(fields[startedAt], 10, 64)
	return s, err
}

// cgroup returns where the container runtime has put a process.
func cgroup(dir int, buffer []byte) (string, error) {
	text, err := readAt(dir, name("cgroup\x00"), buffer)
	if err != nil {
		return "", err
	}
	return parseCgroup(string(text)), nil
}

// parseCgroup reads /proc/PID/cgroup. On cgroup v1 a process has a path in each hierarchy, and container runtimes may leave some at the
// root: v2 next to v1, or v1 where only old containers need it.
func parseCgroup(text string) string {
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		for c := range strings.SplitSeq(controllers, ",") {
			paths[c] = path
		}
	}
	for _, controller := range []string{"pids", "devices", "name=systemd", ""} {
		if path := paths[controller]; path != "" && path != "/" {
			return path
		}
	}
	return "/"
}
