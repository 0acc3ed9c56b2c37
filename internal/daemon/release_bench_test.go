package daemon

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/reclaim"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
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
	gate := reclaimGate(c, nil, nil, log, prometheus.NewRegistry())
	count := &counting{Client: openers.Client{Path: c.Socket}}
	gate.Finder, gate.SeesRuntime = count, func() bool { return true }
	go func() { served <- gate.Run(ctx, reclaim.Neighbours{}) }()
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
	cpu, last time.Duration // of all, and of the last one
	processes int
}

func (c *counting) Find(ctx context.Context, all []openers.Device) (openers.Scan, error) {
	s, err := c.Client.Find(ctx, all)
	c.searches, c.cpu, c.last, c.processes = c.searches+1, c.cpu+s.CPU, s.CPU, s.Processes
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
				a.RuntimeInjected(container(holder.Pod.UID))
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

// crowd starts processes that do nothing, for as long as the benchmark lasts. A shell forks them: each has ten descriptors, a shell's
// libraries, and some 100 KiB of memory of its own.
func crowd(b *testing.B, processes int) {
	b.Helper()
	c := exec.Command("sh", "-c", `exec 3<&0 4<&0 5<&0 6<&0 7<&0 8<&0 9<&0; i=0; while [ $i -lt "$0" ]; do read x <&3 & i=$((i+1)); done; echo ready; wait`, fmt.Sprint(processes))
	stay, err := c.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { // the end of the pipe ends them all
		_, _ = stay.Close(), c.Wait()
	})
	if text, err := bufio.NewReader(out).ReadString('\n'); err != nil || text != "ready\n" {
		b.Fatalf("%d processes: the shell says %q, %v", processes, text, err)
	}
}

// BenchmarkReleases has 100 pods end within a second or within two minutes on a node with many processes, and prints what the searches
// cost and how long each device took to be free. See BenchmarkRelease on PID namespaces.
func BenchmarkReleases(b *testing.B) {
	for _, c := range []struct {
		processes int
		within    time.Duration
	}{
		{0, time.Second}, {3000, time.Second}, {5000, time.Second}, {10_000, time.Second}, {10_000, 2 * time.Minute},
	} {
		b.Run(fmt.Sprintf("%d-more-processes/%s", c.processes, c.within), func(b *testing.B) {
			if c.processes > 0 {
				crowd(b, c.processes)
			}
			for b.Loop() {
				b.StopTimer()
				const pods = 100
				a, count := releasing(b, config.Openers, pods)
				var all []device.PodDemand
				for i := range pods {
					all = append(all, a.Settle(b, allocatortest.Pod(fmt.Sprint(i), gpu, 1)))
					a.RuntimeInjected(container(all[i].Pod.UID))
				}
				b.StartTimer()
				began := time.Now()
				ends, took := make(chan time.Time, pods), map[device.ID]time.Duration{}
				go func() {
					for _, p := range all {
						ends <- time.Now()
						a.Drop(p.Pod.UID)
						a.RuntimeStopped(container(p.Pod.UID))
						time.Sleep(c.within / pods)
					}
				}()
				var ended []time.Time
				for len(took) < pods {
					changed := a.Updated()
					devices, _ := a.Devices(gpu)
					for len(ends) > 0 {
						ended = append(ended, <-ends)
					}
					for i, d := range devices { // pod i has had device i
						if _, known := took[d.ID]; !known && d.State == device.StateFree {
							took[d.ID] = time.Since(ended[i])
						}
					}
					if len(took) < pods {
						<-changed
					}
				}
				whole, sorted := time.Since(began), slices.Sorted(maps.Values(took))
				b.ReportMetric(sorted[pods/2].Seconds(), "s-median")
				b.ReportMetric(sorted[pods-1].Seconds(), "s-longest")
				b.ReportMetric(float64(count.searches), "searches")
				b.ReportMetric(float64(count.processes), "processes")
				b.ReportMetric(count.cpu.Seconds()/float64(count.searches), "s-cpu/search")
				// The share of the minute before may be used too, and the pause for the last search is still to come.
				b.ReportMetric(100*(count.cpu-count.last).Seconds()/(time.Minute+whole).Seconds(), "%-of-a-core")
			}
		})
	}
}
