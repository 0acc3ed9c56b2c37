//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// busyNode is the node of the one device of these tests.
const busyNode = "/run/vendor/dev-000000"

// loopDevice makes the device: a block device of the kernel, which can be mapped.
func loopDevice(t *testing.T) { loopDeviceAt(t, busyNode) }

// loopDeviceAt makes such a device with a node of that name.
func loopDeviceAt(t *testing.T, node string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(node), 0o755), unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n))))); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(node) })
	loop, err := os.OpenFile(node, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer loop.Close()
	disk, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer disk.Close()
	if err := unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_SET_FD, int(disk.Fd())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if loop, err := os.OpenFile(node, os.O_RDWR, 0); err == nil {
			_ = unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0)
			loop.Close()
		}
	})
}

// openers starts devmgrd openers, which systemd starts elsewhere.
func (r *harness) openers() *cluster.Process {
	r.t.Helper()
	p := cluster.NewProcess("openers", filepath.Join(r.LogDir(), "openers.log"), []string{os.Getenv("TESTNODE_BINARY"), "openers"}, nil)
	r.must(p.Start(r.ctx))
	r.t.Cleanup(func() {
		if err := p.Stop(stopLimit); err != nil {
			r.t.Error(err)
		}
	})
	return p
}

// follows has the scheduler bind the next pod to the device of a former one as soon as that is deleted: some seconds later the Node does not
// count the device, if it is busy.
func (r *harness) follows(next, former string) {
	r.t.Helper()
	r.must(r.Create(r.ctx, node.Pod(next, gpu, 1, "report", "--then-sleep")))
	r.unscheduled(next)
	r.must(r.Delete(r.ctx, former))
}

// A holder keeps the device after its pod has ended.
type holder struct {
	pid int
	end func()
}

// holderVariable has the test's binary map the device and close its descriptor.
const holderVariable = "E2E_MAPS_DEVICE"

func init() {
	if os.Getenv(holderVariable) == "" {
		return
	}
	fd, err := unix.Open(busyNode, unix.O_RDWR, 0)
	if err == nil {
		_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	unix.Close(fd)
	fmt.Println("holds")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends
	os.Exit(0)
}

// holds starts a process and waits until it says that it holds the device.
func (r *harness) holds(command *exec.Cmd) holder {
	r.t.Helper()
	out, err := command.StdoutPipe()
	r.must(err)
	_, err = command.StdinPipe()
	r.must(err)
	r.must(command.Start())
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL)
			_ = command.Wait()
		}
	}
	r.t.Cleanup(end)
	text := make([]byte, 100)
	n, err := out.Read(text)
	if err != nil || !strings.HasPrefix(string(text[:n]), "holds") {
		r.t.Fatalf("the process says %q, %v", text[:n], err)
	}
	return holder{command.Process.Pid, end}
}

// A process outside of a pod has the pod's device in each of these ways when the pod ends. The next pod does not start before that is
// over, whatever happens to devmgrd, and everyone can see the process.
func TestBusy_AnotherProcessHasTheDevice_NextPodWaits(t *testing.T) {
	const shell = `exec 3<>` + busyNode + `; echo holds; exec sleep 3600`
	group := func(flags uintptr) *syscall.SysProcAttr {
		return &syscall.SysProcAttr{Setpgid: true, Cloneflags: flags}
	}
	for _, c := range []struct {
		name  string
		start func(r *harness) holder
		how   string
	}{
		{"open in another PID namespace", func(r *harness) holder {
			command := exec.Command("bash", "-c", shell)
			command.SysProcAttr = group(syscall.CLONE_NEWPID)
			return r.holds(command)
		}, "has " + busyNode + " open"},
		{"mapped only", func(r *harness) holder {
			self, err := os.Executable()
			r.must(err)
			command := exec.Command(self)
			command.Env, command.SysProcAttr = append(os.Environ(), holderVariable+"=yes", "GORACE=atexit_sleep_ms=0"), group(0)
			return r.holds(command)
		}, "has " + busyNode + " mapped"},
		{"descriptor passed on", func(r *harness) holder {
			command := exec.Command("bash", "-c", `exec 3<>`+busyNode+`; sleep 3600 & echo holds $!; wait`)
			command.SysProcAttr = group(0)
			out, err := command.StdoutPipe()
			r.must(err)
			r.must(command.Start())
			pid := 0
			_, err = fmt.Fscanf(out, "holds %d\n", &pid)
			r.must(err)
			r.must(command.Process.Kill()) // the one that opened the device
			_ = command.Wait()
			end := func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
			r.t.Cleanup(end)
			return holder{pid, end}
		}, "has " + busyNode + " open"},
		{"open in another pod", func(r *harness) holder {
			r.must(r.Create(r.ctx, node.Pod("notebook", gpu, 0, "sleep")))
			_, err := r.WaitPhase(r.soon(), "notebook", corev1.PodRunning)
			r.must(err)
			command := exec.Command("bash", "-c", shell)
			command.SysProcAttr = group(0)
			h := r.holds(command)
			r.joins(h.pid, r.uid("notebook"))
			return h
		}, "of pod default/notebook has " + busyNode + " open"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t, "--set", "release.check=vendor.example/*=openers")
			r.openers()
			loopDevice(t)
			r.plugin(gpu, 1, func(p *plugintest.Plugin) { p.OnAllocate = grantsNodes })
			r.run("a", gpu, 1)
			h := c.start(r)
			r.follows("b", "a")
			r.told("b", "DeviceBusy")
			want := fmt.Sprintf("process %d (", h.pid)
			r.says("explain default/b", "DeviceBusy", want, c.how)
			r.says("devices", "busy", "default/a", want, c.how)
			r.must(r.Devmgrd.Kill())
			r.must(r.StartDevmgrd(r.ctx))
			r.until("the device is busy again", func() bool { return r.inState(gpu, "busy") == 1 })
			r.says("devices", "busy", "default/a", want, c.how)
			r.must(r.WaitShown(r.soon(), gpu, 1)) // as many as b requests: a kubelet that restarts must not fail it
			if out := r.says("assignments"); strings.Contains(out, "default/b") {
				t.Errorf("assignments:\n%s", out)
			}
			h.end()
			r.running("b")
			r.states(0, 1, 0)
		})
	}
}

// joins moves a process into the cgroups of a pod's containers.
func (r *harness) joins(pid int, uid types.UID) {
	r.t.Helper()
	joined := false
	r.must(filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Name() == "cgroup.procs" && strings.Contains(filepath.Dir(filepath.Dir(path)), string(uid)) {
			joined = true
			return os.WriteFile(path, []byte(fmt.Sprint(pid)), 0)
		}
		return nil
	}))
	if !joined {
		r.t.Fatalf("no cgroup of pod %s", uid)
	}
}

// devmgrd openers is away: nothing is known, so nothing is released. It comes back, and the pod starts.
func TestBusy_OpenersAway_DevicesAreNotReleased(t *testing.T) {
	r := start(t, "--set", "release.check=vendor.example/*=openers")
	loopDevice(t)
	r.plugin(gpu, 1, func(p *plugintest.Plugin) { p.OnAllocate = grantsNodes })
	r.run("a", gpu, 1)
	r.follows("b", "a")
	r.told("b", "DeviceBusy")
	r.says("explain default/b", "DeviceBusy", "it is not known whether other processes use the devices", "openers.sock")
	r.openers()
	r.running("b")
}

// An operator decides that a busy device may be used, with the process on it.
func TestBusy_Uncordon_ReleasesTheDevice(t *testing.T) {
	r := start(t, "--set", "release.check=vendor.example/*=openers")
	r.openers()
	loopDevice(t)
	r.plugin(gpu, 1, func(p *plugintest.Plugin) { p.OnAllocate = grantsNodes })
	r.run("a", gpu, 1)
	command := exec.Command("bash", "-c", `exec 3<>`+busyNode+`; echo holds; exec sleep 3600`)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	h := r.holds(command)
	r.follows("b", "a")
	r.told("b", "DeviceBusy")
	r.says("uncordon "+gpu+"/dev-000000", gpu)
	r.running("b")
	if !alive(h.pid) {
		t.Error("the process has ended")
	}
}
