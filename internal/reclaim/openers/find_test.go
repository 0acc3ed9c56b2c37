package openers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Find makes a scan with a finder of its own.
func Find(ctx context.Context, proc string, devices []Device) (Scan, error) {
	return newFinder(proc).find(ctx, devices)
}

// find scans the machine.
func find(t testing.TB, devices ...Device) Scan {
	t.Helper()
	scan, err := Find(t.Context(), "/proc", devices)
	if err != nil {
		t.Fatal(err)
	}
	return scan
}

// by returns how a process holds a device; empty: not at all. It fails the test if the process is unknown.
func by(t testing.TB, scan Scan, d Device, pid int) How {
	t.Helper()
	for _, u := range scan.Unknown {
		if u.PID == pid {
			t.Errorf("process %d %s", pid, u.Reason)
		}
	}
	for _, o := range scan.Openers {
		if o.Device == d && o.PID == pid {
			return o.How
		}
	}
	return ""
}

// want checks how a process holds /dev/full.
func want(t testing.TB, pid int, how How) {
	t.Helper()
	if got := by(t, find(t, full), full, pid); got != how {
		t.Errorf("process %d holds the device %q, want %q", pid, got, how)
	}
}

func TestFind_Open(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "open", fullNode)
	scan := find(t, full, Device{Major: 1, Minor: 3}, full)
	i := slices.IndexFunc(scan.Openers, func(o Opener) bool { return o.Device == full && o.PID == c.Process.Pid })
	if i < 0 {
		t.Fatalf("%+v lacks process %d", scan, c.Process.Pid)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var file unix.Stat_t
	if err := unix.Stat(self, &file); err != nil {
		t.Fatal(err)
	}
	o := scan.Openers[i]
	if o.ExeFile != (File{file.Dev, file.Ino}) || o.Command == "" || !strings.HasPrefix(self, filepath.Dir(self)+"/"+o.Command) || o.Cgroup == "" || o.How != Open {
		t.Errorf("found %+v, want executable %s", o, self)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", o.PID))
	if s, parseErr := parseStatus(stat); err != nil || parseErr != nil || s.started != o.Started || s.started == 0 {
		t.Errorf("it started at %d, want %d (%v, %v)", o.Started, s.started, err, parseErr)
	}
	if scan.Processes == 0 || scan.Files < scan.Processes || scan.CPU <= 0 {
		t.Errorf("the scan counts %d processes, %d files, %v", scan.Processes, scan.Files, scan.CPU)
	}
	c.end()
	want(t, o.PID, "")
}

// A user's process may run any executable, and be root in a user namespace.
func TestFind_Root_IsOfTheFirstUserNamespace(t *testing.T) {
	plugintest.NeedRoot(t)
	binary := plugintest.Executable(t)
	inNamespace := as(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: 0, Size: 1}}})
	for name, test := range map[string]struct {
		change func(*exec.Cmd)
		want   bool
	}{"root": {func(*exec.Cmd) {}, true}, "a user": {asUser(binary, 65534), false}, "root of a user namespace": {inNamespace, false}} {
		t.Run(name, func(t *testing.T) {
			c := ready(t, "open", fullNode, test.change)
			scan := find(t, full)
			i := slices.IndexFunc(scan.Openers, func(o Opener) bool { return o.PID == c.Process.Pid })
			if i < 0 || scan.Openers[i].Root != test.want {
				t.Errorf("%+v", scan.Openers)
			}
		})
	}
}

func TestFind_OtherDevice_IsNotFound(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "open", fullNode)
	for _, d := range []Device{{Block: true, Major: 1, Minor: 7}, {Major: 1, Minor: 8}, {Major: 7, Minor: 1}} {
		if how := by(t, find(t, d), d, c.Process.Pid); how != "" {
			t.Errorf("process holds %v: %s", d, how)
		}
	}
}

func TestFind_MappedAndClosed(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "map", "/dev/zero")
	zero := Device{Major: 1, Minor: 5}
	if how := by(t, find(t, zero), zero, c.Process.Pid); how != Mapped {
		t.Errorf("process holds %v: %q", zero, how)
	}
}

// A block device whose memory is shared.
func TestFind_MappedBlockDevice(t *testing.T) {
	plugintest.NeedRoot(t)
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("this machine has no loop devices (modprobe loop): %v", err)
	}
	defer unix.Close(control)
	backing, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer backing.Close()
	if err := backing.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	var loop *os.File
	for loop == nil { // another process may take the free device first
		n, err := unix.IoctlRetInt(control, unix.LOOP_CTL_GET_FREE)
		if err != nil {
			t.Fatalf("this machine has no free loop device: %v", err)
		}
		f, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			t.Fatalf("this machine has no node for the loop device: %v", err)
		}
		config := unix.LoopConfig{Fd: uint32(backing.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		switch err := unix.IoctlLoopConfigure(int(f.Fd()), &config); err {
		case nil:
			loop = f
		case unix.EBUSY:
			f.Close()
		default:
			f.Close()
			t.Fatal(err)
		}
	}
	defer loop.Close()
	var node unix.Stat_t
	if err := unix.Fstat(int(loop.Fd()), &node); err != nil {
		t.Fatal(err)
	}
	d := Device{Block: true, Major: unix.Major(node.Rdev), Minor: unix.Minor(node.Rdev)}
	c := ready(t, "map", loop.Name())
	if how := by(t, find(t, d), d, c.Process.Pid); how != Mapped {
		t.Errorf("process holds %v: %q", d, how)
	}
	c.end()
	if scan := find(t, d); by(t, scan, d, c.Process.Pid) != "" || by(t, scan, d, os.Getpid()) != "" {
		t.Errorf("after the process's end: %+v", scan.Openers)
	}
	other := Device{Major: d.Major, Minor: d.Minor}
	c = ready(t, "open", loop.Name())
	if scan := find(t, d, other); by(t, scan, d, c.Process.Pid) != Open || by(t, scan, other, c.Process.Pid) != "" {
		t.Errorf("opened: %+v", scan.Openers)
	}
}

func TestFind_OtherPIDNamespace(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "open", fullNode, as(&syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}))
	want(t, c.Process.Pid, Open)
}

// A pod's process may hand a device to a daemon, and end.
func TestFind_DescriptorPassedOn(t *testing.T) {
	plugintest.NeedRoot(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := []*os.File{os.NewFile(uintptr(pair[0]), ""), os.NewFile(uintptr(pair[1]), "")}
	with := func(f *os.File) func(*exec.Cmd) {
		return func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{f} }
	}
	from := start(t, "send", fullNode, with(ends[0]))
	if err := from.Wait(); err != nil {
		t.Fatal(err)
	}
	to := ready(t, "receive", "", with(ends[1]))
	ends[0].Close()
	ends[1].Close()
	want(t, to.Process.Pid, Open)
	want(t, from.Process.Pid, "")
}

func TestFind_ThreadWithOwnTable(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "thread", fullNode)
	want(t, c.Process.Pid, Open)
}

// The first thread of the process has ended: proc shows none of its files, and none of its memory.
func TestFind_LeaderEnded(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "zombie", fullNode)
	want(t, c.Process.Pid, Open)
	scan := find(t, full)
	for _, o := range scan.Openers {
		if o.PID == c.Process.Pid && (o.ExeFile == File{} || o.Started == 0) {
			t.Errorf("found %+v", o)
		}
	}
}

func TestFind_OtherNameInPrivateMount(t *testing.T) {
	plugintest.NeedRoot(t)
	c := ready(t, "mknod", t.TempDir(), as(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))
	want(t, c.Process.Pid, Open)
}

// Each device that is held is reported, whatever the number of its openers and of the devices.
func TestFind_ManyOpeners_AreCutOff(t *testing.T) {
	plugintest.NeedRoot(t)
	node, err := os.Open(fullNode)
	if err != nil {
		t.Fatal(err)
	}
	defer node.Close()
	pids := idle(t, maxOpeners+4, node)
	scan := find(t, full)
	if len(scan.Openers) != maxOpeners || !slices.Equal(scan.More, []Device{full}) {
		t.Errorf("%d openers of %d, and more of %v", len(scan.Openers), len(pids), scan.More)
	}
	devices := []Device{full}
	for i := range uint32(MaxDevices - 1) {
		devices = append(devices, Device{Block: true, Major: 1 << 11, Minor: i})
	}
	if scan = find(t, devices...); len(scan.Openers) != 1 || !slices.Equal(scan.More, []Device{full}) {
		t.Errorf("among %d devices, %d openers of %d, and more of %v", len(devices), len(scan.Openers), len(pids), scan.More)
	}
}

func TestFind_ProcessesEndMeanwhile(t *testing.T) {
	plugintest.NeedRoot(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 100 {
			_ = exec.Command("true").Run()
		}
	}()
	for scans := 0; ; scans++ {
		select {
		case <-done:
			t.Logf("%d scans", scans)
			return
		default:
			find(t, full)
		}
	}
}

func TestFind_EndOfContext(t *testing.T) {
	plugintest.NeedRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Find(ctx, "/proc", []Device{full}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

func TestFind_NumberOfDevices(t *testing.T) {
	for _, n := range []int{0, MaxDevices + 1} {
		if _, err := Find(t.Context(), "/proc", make([]Device, n)); err == nil || !strings.Contains(err.Error(), "in the request") {
			t.Errorf("%d devices: %v", n, err)
		}
	}
}

// Without a capability, there is no result at all.
func TestFind_Capabilities(t *testing.T) {
	plugintest.NeedRoot(t)
	binary := plugintest.Executable(t)
	holder := ready(t, "open", fullNode)
	output := func(c *child) string {
		t.Helper()
		var b bytes.Buffer
		if _, err := b.ReadFrom(c.out); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, test := range []struct {
		has  []uintptr
		want string
	}{
		{nil, "permission denied; this process lacks CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH, CAP_CHECKPOINT_RESTORE\n"},
		{[]uintptr{unix.CAP_DAC_READ_SEARCH, unix.CAP_CHECKPOINT_RESTORE}, "permission denied; this process lacks CAP_SYS_PTRACE\n"},
		{[]uintptr{unix.CAP_SYS_PTRACE, unix.CAP_CHECKPOINT_RESTORE}, "permission denied; this process lacks CAP_DAC_READ_SEARCH\n"},
		{[]uintptr{unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH}, "; this process lacks CAP_CHECKPOINT_RESTORE\n"},
	} {
		got := output(start(t, "find", "/proc", asUser(binary, 65534, test.has...)))
		if !strings.HasPrefix(got, "looking for openers of devices: reading /proc/") || !strings.HasSuffix(got, test.want) {
			t.Errorf("with capabilities %d: %q, want %q", test.has, got, test.want)
		}
	}
	text := output(start(t, "find", "/proc", asUser(binary, 65534, unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH, unix.CAP_CHECKPOINT_RESTORE)))
	var scan Scan
	if err := json.Unmarshal([]byte(text), &scan); err != nil || by(t, scan, full, holder.Process.Pid) != Open {
		t.Errorf("with all three: %q (%v)", text, err)
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	if got := output(start(t, "hidden", dir, as(&syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}))); !strings.Contains(got, "hidepid") || !strings.Contains(got, "CAP_SYS_PTRACE") {
		t.Errorf("where proc hides processes: %q", got)
	}
}
