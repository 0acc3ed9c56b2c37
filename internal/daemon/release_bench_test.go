package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/openers"
	"github.com/devmgrd/devmgrd/internal/socket"
)

const gpu device.ResourceName = "vendor.example/gpu"

// releasing starts an allocator that releases devices as the daemon does at a level of release.check. Each device has the node of a
// character device that no process has open.
func releasing(b *testing.B, level string, devices int) (*allocatortest.Allocator, *counting) {
	b.Helper()
	dir := b.TempDir()
	l, err := socket.ListenPath(filepath.Join(dir, "openers.sock"), 0o600)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	log := slog.New(slog.DiscardHandler)
	served := make(chan error, 2)
	go func() { served <- openers.Serve(ctx, l, 0, log) }()
	c := config.Release{Check: map[string]string{"*": level}, Socket: filepath.Join(dir, "openers.sock"), Timeout: time.Minute}
	gate := releaseGate(c, func() bool { return true }, log, prometheus.NewRegistry())
	count := &counting{Client: openers.Client{Path: c.Socket}}
	gate.Finder = count
	go func() { served <- gate.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-served; err != nil {
				b.Error(err)
			}
		}
	})
	a := allocatortest.Start(b, dir, func(of *allocator.Config) {
		of.Host, of.Releaser = nri.Cgroups(nri.CgroupRoot), gate
		of.ChecksProcesses = func(r device.ResourceName) bool { return c.Level(string(r)) != config.NoCheck }
	})
	for i := range devices {
		if err := unix.Mknod(filepath.Join(dir, fmt.Sprintf("d%03d", i)), unix.S_IFCHR|0o600, int(unix.Mkdev(240, uint32(i)))); err != nil {
			b.Fatal(err)
		}
	}
	a.Plugins.Grants(func(ids []device.ID) device.Grant {
		return device.Grant{Nodes: []device.Node{{HostPath: filepath.Join(dir, string(ids[0])), Permissions: "rw"}}}
	})
	a.Plugins.Stock(gpu, devices)
	return a, count
}

// counting counts searches.
type counting struct {
	openers.Client
	searches  int
	cpu       time.Duration
	processes int
}

func (c *counting) Find(ctx context.Context, all []openers.Device) (openers.Scan, error) {
	s, err := c.Client.Find(ctx, all)
	c.searches, c.cpu, c.processes = c.searches+1, c.cpu+s.CPU, s.Processes
	return s, err
}

func container(uid device.PodUID) device.Running {
	return device.Running{ID: string(uid), Container: device.Container{Pod: uid, Name: "main"}, Made: time.Now()}
}

// BenchmarkRelease measures from the end of a pod's last container until the next pod has its device, at each level of release.check.
// A process that hides its descriptors even from root, as process 1 of some virtual machines does, keeps every device: there, run it with
// unshare --pid --fork --kill-child --mount-proc.
func BenchmarkRelease(b *testing.B) {
	for _, level := range []string{config.NoCheck, config.Cgroup, config.Openers} {
		b.Run(level, func(b *testing.B) {
			a, _ := releasing(b, level, 1)
			var took []time.Duration
			n := 0
			holder := a.Settle(b, allocatortest.Pod("first", gpu, 1))
			for b.Loop() {
				b.StopTimer()
				n++
				a.RuntimeStarted(container(holder.Pod.UID))
				next := allocatortest.Pod(fmt.Sprint(n), gpu, 1)
				a.Bind(next)
				a.Drop(holder.Pod.UID)
				b.StartTimer()
				began := time.Now()
				a.RuntimeStopped(container(holder.Pod.UID))
				holder = a.Settle(b, next)
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "ms-longest")
		})
	}
}

// BenchmarkReleases has 100 pods end within a second on a node with many processes, and prints what the searches cost.
func BenchmarkReleases(b *testing.B) {
	for _, processes := range []int{0, 3000} {
		b.Run(fmt.Sprintf("%d-more-processes", processes), func(b *testing.B) {
			for range processes {
				c := exec.Command("sleep", "3600")
				c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
				if err := c.Start(); err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
			}
			for b.Loop() {
				b.StopTimer()
				const pods = 100
				a, count := releasing(b, config.Openers, pods)
				var all []device.PodDemand
				for i := range pods {
					all = append(all, a.Settle(b, allocatortest.Pod(fmt.Sprint(i), gpu, 1)))
					a.RuntimeStarted(container(all[i].Pod.UID))
				}
				b.StartTimer()
				began := time.Now()
				for _, p := range all {
					a.Drop(p.Pod.UID)
					a.RuntimeStopped(container(p.Pod.UID))
					time.Sleep(time.Second / pods)
				}
				for a.Resources().ByName[gpu].States[device.Available] < pods {
					<-a.Updated()
				}
				took := time.Since(began)
				b.ReportMetric(took.Seconds(), "s-until-all-are-free")
				b.ReportMetric(float64(count.searches), "searches")
				b.ReportMetric(float64(count.processes), "processes")
				b.ReportMetric(count.cpu.Seconds(), "s-cpu")
			}
		})
	}
}
