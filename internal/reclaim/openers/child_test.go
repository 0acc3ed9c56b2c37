package openers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// full is a device that few processes use, and its node.
var full = Device{Major: 1, Minor: 7}

const fullNode = "/dev/full"

// roleVariable has the test binary be a child: the name of its role, and the argument.
const roleVariable = "OPENERS_ROLE"

// roles are what a child does before it says that it is ready. It then stays until its input ends.
var roles = map[string]func(argument string) error{
	"open":    openNode,
	"map":     mapNode,
	"thread":  func(node string) error { return onThread(false, func() error { return openAlone(node) }) },
	"zombie":  leaveLeader,
	"receive": receive,
	"send":    send,
	"mknod":   mknod,
	"fuse":    holdOnFUSE,
	"bad":     holdBadInode,
	"find":    findAsChild,
	"hidden":  findHidden,
}

func TestMain(m *testing.M) {
	if role, argument, is := strings.Cut(os.Getenv(roleVariable), " "); is {
		if err := roles[role](argument); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if role == "send" || role == "find" || role == "hidden" || role == "fuse" {
			os.Exit(0)
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A child is a process in a role.
type child struct {
	*exec.Cmd
	stay io.Closer
	out  *bufio.Reader
}

// start starts a child, which ends with the test.
func start(t testing.TB, role, argument string, change ...func(*exec.Cmd)) *child {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env, cmd.Stderr = []string{roleVariable + "=" + role + " " + argument, "GORACE=atexit_sleep_ms=0"}, os.Stderr
	for _, f := range change {
		f(cmd)
	}
	stay, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{cmd, stay, bufio.NewReader(out)}
	t.Cleanup(c.end)
	return c
}

func (c *child) end() {
	c.stay.Close()
	_ = c.Wait()
}

// line returns a child's next line.
func (c *child) line(t testing.TB) string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the child has ended: %v", err)
	}
	return strings.TrimSpace(line)
}

// ready starts a child and waits for it.
func ready(t testing.TB, role, argument string, change ...func(*exec.Cmd)) *child {
	t.Helper()
	c := start(t, role, argument, change...)
	if got := c.line(t); got != "ready" {
		t.Fatalf("the child reports %q", got)
	}
	return c
}

func as(attr *syscall.SysProcAttr) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) { cmd.SysProcAttr = attr }
}

// asUser runs a child as another user, from a copy of the test binary that this user may execute.
func asUser(path string, uid uint32, capabilities ...uintptr) func(*exec.Cmd) {
	return func(cmd *exec.Cmd) {
		cmd.Path = path
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}, AmbientCaps: capabilities}
	}
}

func openNode(node string) error {
	_, err := unix.Open(node, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return err
}

func mapNode(node string) error {
	fd, err := unix.Open(node, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	flags := unix.MAP_SHARED
	if node == "/dev/zero" {
		flags = unix.MAP_PRIVATE // shared, it would be anonymous memory
	}
	_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ, flags)
	return errors.Join(err, unix.Close(fd))
}

// onThread calls f in the first thread of the process, or in another one. That thread does nothing else afterwards.
func onThread(first bool, f func() error) error {
	result, over := make(chan error), make(chan struct{})
	defer close(over)
	for range 1000 {
		hit := make(chan bool)
		go func() {
			runtime.LockOSThread() // the goroutine never ends, so that the thread does not either
			is := (unix.Gettid() == unix.Getpid()) == first
			hit <- is
			if is {
				result <- f()
			} else {
				<-over
			}
			select {}
		}()
		if <-hit {
			return <-result
		}
	}
	return errors.New("no such thread")
}

// openAlone opens a node in a table of descriptors that other threads do not share.
func openAlone(node string) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return err
	}
	return openNode(node)
}

// leaveLeader opens a node and ends the first thread of the process.
func leaveLeader(node string) error {
	if err := openNode(node); err != nil {
		return err
	}
	ending := make(chan struct{})
	go func() {
		_ = onThread(true, func() error {
			close(ending)
			_, _, errno := syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
			return errno
		})
	}()
	<-ending
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", os.Getpid()))
		if err != nil {
			return err
		}
		if s, err := parseStatus(text); err != nil || s.closed {
			return err
		}
		runtime.Gosched()
	}
}

// send sends a descriptor of a node over the socket that the child has inherited, and ends.
func send(node string) error {
	fd, err := unix.Open(node, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Sendmsg(3, []byte{0}, unix.UnixRights(fd), nil, 0)
}

func receive(string) error {
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), control, 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Errorf("%d messages, %w", len(messages), err)
	}
	_, err = unix.ParseUnixRights(&messages[0])
	return err
}

// mknod opens a node that it makes in a file system of its own.
func mknod(dir string) error {
	node := filepath.Join(dir, "tty")
	if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := unix.Mknod(node, unix.S_IFCHR|0o600, int(unix.Mkdev(full.Major, full.Minor))); err != nil {
		return err
	}
	return openNode(node)
}

// findAsChild prints the scan of a proc.
func findAsChild(proc string) error {
	scan, err := Find(context.Background(), proc, []Device{full})
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(scan)
}

// findHidden prints the scan of a proc that hides the processes of other users.
func findHidden(dir string) error {
	if err := unix.Mount("none", dir, "proc", 0, "hidepid=2"); err != nil {
		return err
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setresgid(65534, 65534, 65534), syscall.Setresuid(65534, 65534, 65534)); err != nil {
		return err
	}
	return findAsChild(dir)
}

// idle starts processes that wait for the end of a pipe, with further files from descriptor 3 on.
func idle(t testing.TB, n int, files ...*os.File) (pids []int) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var all []*exec.Cmd
	t.Cleanup(func() {
		r.Close()
		w.Close()
		for _, cmd := range all {
			_ = cmd.Wait()
		}
	})
	for range n {
		cmd := exec.Command("cat")
		cmd.Stdin, cmd.ExtraFiles = r, files
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		all, pids = append(all, cmd), append(pids, cmd.Process.Pid)
	}
	return pids
}
