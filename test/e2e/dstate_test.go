//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/fusetest"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// hangingVariable has the test's binary serve a file system at that directory, which hangs.
const hangingVariable = "E2E_HANGS_AT"

func init() {
	dir := os.Getenv(hangingVariable)
	if dir == "" {
		return
	}
	fd, err := fusetest.Mount(dir, 0, 0)
	if err == nil {
		fmt.Println("mounted")
		err = fusetest.Serve(fd, func() { fmt.Println("hangs") })
	}
	fmt.Println(err)
	os.Exit(1)
}

// A hangingFS is a file system that hangs.
type hangingFS struct {
	dir   string
	lines *bufio.Scanner // of its server
	end   func()         // the kernel then fails what waits
}

func (r *harness) hanging() *hangingFS {
	r.t.Helper()
	self, err := os.Executable()
	r.must(err)
	fs := &hangingFS{dir: r.t.TempDir()}
	command := exec.Command(self)
	command.Env = append(os.Environ(), hangingVariable+"="+fs.dir, "GORACE=atexit_sleep_ms=0")
	out, err := command.StdoutPipe()
	r.must(err)
	r.must(command.Start())
	fs.lines = bufio.NewScanner(out)
	fs.end = sync.OnceFunc(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	r.t.Cleanup(func() {
		fs.end()
		_ = unix.Unmount(fs.dir, unix.MNT_DETACH)
	})
	r.line(fs, "mounted")
	return fs
}

// line waits for a line of the file system's server.
func (r *harness) line(fs *hangingFS, want string) {
	r.t.Helper()
	if !fs.lines.Scan() || fs.lines.Text() != want {
		r.t.Fatalf("the file system's server says %q, %v", fs.lines.Text(), fs.lines.Err())
	}
}

// kernelState returns a process's state, as proc(5) names it, or 0 if there is no process.
func kernelState(pid int) byte {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	at := bytes.LastIndex(line, []byte(") "))
	if err != nil || at < 0 {
		return 0
	}
	return line[at+2]
}

// A process that waits for a hung file system ignores SIGKILL. Its device stays out of service until it ends, and the releases of other
// devices go on.
func TestBusy_ProcessHangs_OnlyItsDeviceWaits(t *testing.T) {
	r := start(t, "--set", "release.check=vendor.example/*=openers")
	r.openers()
	const otherNode = "/run/vendor/dev-000001"
	loopDevice(t)
	loopDeviceAt(t, otherNode)
	r.plugin(gpu, 2, func(p *plugintest.Plugin) { p.OnAllocate = grantsNodes })
	if got := r.run("a", gpu, 1).Env["DEVICES"]; got != "dev-000000" {
		t.Fatalf("pod a has %s", got)
	}
	r.run("other", gpu, 1)
	fs := r.hanging()
	command := exec.Command("bash", "-c", `exec 3<>`+busyNode+` 4<`+filepath.Join(fs.dir, "file")+`; echo holds; exec cat <&4`)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h := r.holds(command)
	t.Cleanup(fs.end) // before the process is waited for
	r.line(fs, "hangs")
	r.must(syscall.Kill(h.pid, syscall.SIGKILL))
	r.until("SIGKILL does not end the process", func() bool { return kernelState(h.pid) == 'D' })
	r.follows("b", "a")
	r.told("b", "DeviceBusy")
	want := fmt.Sprintf("process %d (cat) has %s open", h.pid, busyNode)
	r.says("explain default/b", "DeviceBusy", want)
	r.says("devices", "busy", "default/a", want)

	r.must(r.Delete(r.ctx, "other"))
	r.until("the other device is free, and pod b gets it", func() bool { return strings.Contains(r.says("assignments"), "default/b") })
	if got := r.running("b").Env["DEVICES"]; got != "dev-000001" {
		t.Errorf("pod b has %s, want the device that no process has open", got)
	}
	r.states(0, 1, 0)
	r.must(r.WaitShown(r.soon(), gpu, 1))
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("c")
	began := time.Now()
	r.must(r.Delete(r.ctx, "b"))
	r.running("c")
	t.Logf("a pod had the device of another one %s after that was deleted, next to a process that hangs", time.Since(began).Round(10*time.Millisecond))
	if kernelState(h.pid) != 'D' {
		t.Errorf("the process is %c", kernelState(h.pid))
	}
	r.says("devices", "busy", "default/a", want)

	fs.end()
	r.until("the process has ended", func() bool { return kernelState(h.pid) == 'Z' || kernelState(h.pid) == 0 })
	r.until("the device is free", func() bool { return r.inState(gpu, "free") == 1 && r.inState(gpu, "busy") == 0 })
	r.must(r.WaitShown(r.soon(), gpu, 2))
	if got := r.run("d", gpu, 1).Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("pod d has %s", got)
	}
}
