package openers

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/fusetest"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A file system may have stopped answering, and refuse root. The scan neither waits for it nor fails because of it.
func TestFind_FUSE(t *testing.T) {
	plugintest.NeedRoot(t)
	binary := plugintest.Executable(t)
	for _, test := range []struct {
		name    string
		user    int
		flags   uintptr
		unknown string
	}{
		{"of root", 0, 0, ""},
		{"of another user, without devices", 65534, unix.MS_NODEV, ""},
		{"of another user, with devices", 65534, 0, "cannot be read: fd: permission denied"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "openers")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.Remove(dir) })
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			c := start(t, "fuse", fmt.Sprintf("%s %d %d %s", dir, test.user, test.flags, binary), as(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))
			text := c.line(t)
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal("the test needs FUSE (/dev/fuse, and the kernel's module): ", text)
			}
			state := func() string {
				scan := find(t, full)
				for _, u := range scan.Unknown {
					if u.PID == pid {
						return u.Reason
					}
				}
				return string(by(discard{t}, scan, full, pid))
			}
			if got := state(); got != test.unknown {
				t.Errorf("the process that has a file there is %q, want %q", got, test.unknown)
			}
			if _, err := io.WriteString(c.stay.(io.Writer), "\n"); err != nil { // have it exit: it waits for the file system
				t.Fatal(err)
			}
			limit := time.Now().Add(time.Minute)
			for got := ""; got != "is exiting"; {
				if got = state(); time.Now().After(limit) {
					t.Fatalf("the exiting process is %q", got)
				}
			}
		})
	}
}

// A server of FUSE has the kernel call the inode of an open file bad: its type can never be read. The process is an Unknown.
func TestFind_FUSEInodeIsBad_IsUnknown(t *testing.T) {
	plugintest.NeedRoot(t)
	dir, err := os.MkdirTemp("", "openers")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(dir) })
	c := start(t, "bad", dir, as(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))
	if text := c.line(t); text != "ready" {
		t.Fatal("the test needs FUSE (/dev/fuse, and the kernel's module): ", text)
	}
	scan := find(t, full)
	i := slices.IndexFunc(scan.Unknown, func(u Unknown) bool { return u.PID == c.Process.Pid })
	if i < 0 || scan.Unknown[i].Reason != "cannot be read: fd: input/output error" {
		t.Errorf("%+v", scan.Unknown)
	}
}

// holdBadInode serves a file system in this process, has a file of it open, and looks it up again.
func holdBadInode(dir string) error {
	fd, err := fusetest.Mount(dir, 0, 0)
	if err != nil {
		return err
	}
	go func() { _ = fusetest.Serve(fd, func() {}) }()
	if err := openNode(dir + "/changes"); err != nil {
		return err
	}
	_, err = unix.Open(dir+"/changes", unix.O_PATH|unix.O_CLOEXEC, 0)
	return err
}

// holdOnFUSE serves a file system that answers nothing but the opening of a file, for a process that opens one. Its argument is a
// directory to mount it at, the user of both, flags of the mount, and the binary for that process.
func holdOnFUSE(argument string) error {
	var dir, binary string
	var user int
	var flags uintptr
	if _, err := fmt.Sscan(argument, &dir, &user, &flags, &binary); err != nil {
		return err
	}
	fd, err := fusetest.Mount(dir, user, flags)
	if err != nil {
		return err
	}
	go func() {
		if err := fusetest.Serve(fd, func() {}); err != nil {
			fmt.Fprintln(os.Stderr, "FUSE:", err)
		}
	}()
	holder := exec.Command(binary)
	holder.Env = []string{roleVariable + "=open " + dir + "/file", "GORACE=atexit_sleep_ms=0"}
	holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}}
	stay, err := holder.StdinPipe()
	if err != nil {
		return err
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		return err
	}
	if err := holder.Start(); err != nil {
		return err
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil || !strings.HasPrefix(string(ready), "ready") {
		return fmt.Errorf("the process has not opened its file: %q, %w", ready, err)
	}
	fmt.Println(holder.Process.Pid)
	_, err = os.Stdin.Read(make([]byte, 1)) // a command, or the end of the test
	stay.Close()
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
