package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/node"
)

// A gate decides which syncs of a file fail, which is devmgrd's state file. devmgrd runs under a seccomp filter that hands its fdatasync calls to
// the gate, and those writes that tell which sync follows: bbolt syncs the pages with the data first, then a meta page, which
// is one of the file's first two. The kernel does all other calls.
type gate struct {
	file     string
	listener *net.UnixListener

	mu   sync.Mutex
	fail map[bool]int // so many syncs fail: of the meta page (true), of the data
	made map[bool]int // that have failed
}

const (
	gateSocket = "/run/chaos/gate.sock"
	stateFile  = node.StateDir + "/" + store.FileName
)

func newGate(socket, file string) (*gate, error) {
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	g := &gate{file: file, listener: listener, fail: map[bool]int{}, made: map[bool]int{}}
	go g.accept()
	return g, nil
}

// breaks has so many syncs fail from now on.
func (g *gate) breaks(meta bool, syncs int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail[meta] = syncs
}

// repair lets all syncs succeed, and returns how many have failed: of the data, and of the meta page.
func (g *gate) repair() (data, meta int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	data, meta = g.made[false], g.made[true]
	clear(g.fail)
	clear(g.made)
	return data, meta
}

// accept takes over the filters of all devmgrds that start, until the gate is closed.
func (g *gate) accept() {
	for {
		conn, err := g.listener.AcceptUnix()
		if err != nil {
			return
		}
		if fd, err := receive(conn); err == nil {
			go g.serve(fd)
		}
		conn.Close()
	}
}

func receive(conn *net.UnixConn) (int, error) {
	room := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), room)
	if err != nil {
		return 0, err
	}
	messages, err := unix.ParseSocketControlMessage(room[:n])
	if err != nil {
		return 0, err
	}
	if len(messages) != 1 {
		return 0, errors.New("no descriptor")
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, err
	}
	return fds[0], nil
}

// The kernel's struct seccomp_notif and struct seccomp_notif_resp.
type (
	question struct {
		id         uint64
		pid, flags uint32
		call       int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	answer struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

const doIt = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE

// serve answers one devmgrd's calls until it has ended.
func (g *gate) serve(fd int) {
	defer unix.Close(fd)
	meta := false
	for {
		ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		switch {
		case ready[0].Revents&unix.POLLIN != 0:
		case ready[0].Revents != 0:
			return // nothing is left that the filter is for
		default:
			continue
		}
		var q question
		if ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)) != nil {
			continue // it has been killed in the call
		}
		a := answer{id: q.id, flags: doIt}
		file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", q.pid, q.args[0]))
		if err == nil && file == g.file {
			if q.call != unix.SYS_PWRITE64 && g.fails(meta) {
				a.flags, a.errno = 0, -int32(unix.EIO)
			}
			meta = q.call == unix.SYS_PWRITE64
		}
		_ = ioctl(fd, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)) // the same
	}
}

// fails reports whether a sync is to fail.
func (g *gate) fails(meta bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fail[meta] == 0 {
		return false
	}
	g.fail[meta]--
	g.made[meta]++
	return true
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// runGated runs a program in the place of this one, whose syncs the gate decides on.
func runGated(socket string, argv []string) error {
	runtime.LockOSThread() // the filter is this thread's, which is the only one that is left after exec
	// struct seccomp_data: the call at 0, the halves of the fourth argument, which is pwrite64's offset, at 40 and 44.
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	is := func(what uint16, value uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | what, K: value, Jt: yes, Jf: no}
	}
	end := func(value uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: value} }
	filter := []unix.SockFilter{
		load(0),
		is(unix.BPF_JEQ, unix.SYS_FDATASYNC, 6, 0),
		is(unix.BPF_JEQ, unix.SYS_PWRITE64, 0, 4),
		load(44),
		is(unix.BPF_JEQ, 0, 0, 2),
		load(40),
		is(unix.BPF_JGE, uint32(2*os.Getpagesize()), 0, 1),
		end(unix.SECCOMP_RET_ALLOW),
		end(unix.SECCOMP_RET_USER_NOTIF),
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("setting a filter: %w", errno)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(fd)), nil); err != nil {
		return err
	}
	unix.CloseOnExec(int(fd))
	return fmt.Errorf("%s: %w", filepath.Base(argv[0]), syscall.Exec(argv[0], argv, os.Environ()))
}
