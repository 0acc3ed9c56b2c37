package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
	"github.com/devmgrd/devmgrd/internal/units"
)

const (
	gpu device.ResourceName = "vendor.example/gpu"
	nic device.ResourceName = "vendor.example/nic"
)

// A world is a machine whose processes and commands a test sets.
type world struct {
	mu        sync.Mutex
	holds     map[uint32][]openers.Opener // by the device's minor number
	unknown   []openers.Unknown
	namespace string
	err       error
	cpu       time.Duration
	files     int
	over      int      // of files
	searches  []string // the devices of each
	runs      []string
	running   int
	most      int // runs at one time
	outcome   func(unit string) (units.Outcome, error)
	named     map[device.PodUID]device.Pod
	confined  map[device.PodUID]bool
	departed  []device.Departure
}

func (w *world) Find(_ context.Context, all []openers.Device) (openers.Scan, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var names []string
	scan := openers.Scan{CPU: w.cpu, Files: w.files, Over: w.over, Namespace: w.namespace, Unknown: w.unknown}
	for _, d := range all {
		names = append(names, fmt.Sprintf("char %d:%d", d.Major, d.Minor))
		scan.Openers = append(scan.Openers, w.holds[d.Minor]...)
	}
	slices.Sort(names)
	w.searches = append(w.searches, strings.Join(names, ", "))
	return scan, w.err
}

// Of has a node /dev/gpuN for each device gpuN, and the control node.
func (w *world) Of(_ context.Context, _ device.ResourceName, g device.Grant) (all []device.HostNode, err error) {
	for _, n := range g.Nodes {
		minor := int64(99)
		fmt.Sscanf(n.HostPath, "/dev/gpu%d", &minor)
		all = append(all, device.HostNode{Path: n.HostPath, Kind: "c", Major: 240, Minor: minor})
	}
	return all, nil
}

// Snapshot has the pods of departed.
func (w *world) Snapshot() *device.Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &device.Snapshot{}
	for _, d := range w.departed {
		s.Pods = append(s.Pods, device.PodStatus{PodAllocation: &device.PodAllocation{Pod: d.Pod, Assignments: d.Assignments}})
	}
	return s
}

func (w *world) Named(uid device.PodUID) (device.Pod, bool) {
	pod, known := w.named[uid]
	return pod, known
}

func (w *world) Confined(uid device.PodUID) bool { return w.confined[uid] }

func (w *world) run(_ context.Context, unit string, argv, env []string, _ time.Duration) (units.Outcome, error) {
	w.mu.Lock()
	w.runs = append(w.runs, strings.Join(append(slices.Clone(argv), env...), " "))
	w.running++
	w.most = max(w.most, w.running)
	w.mu.Unlock()
	time.Sleep(time.Second) // of the bubble's clock
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	return w.outcome(unit)
}

func (w *world) opens(minor uint32, p openers.Process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.holds[minor] = append(w.holds[minor], openers.Opener{Device: openers.Device{Major: 240, Minor: minor}, Process: p, How: openers.Open})
}

func (w *world) closes(minor uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holds, minor)
}

// commandUnits are the units of systemd that run commands.
type commandUnits struct {
	run  func(ctx context.Context, unit string, argv, env []string, limit time.Duration) (units.Outcome, error)
	left map[string]time.Duration // the units of an earlier process of devmgrd, and how long each takes to end
	away time.Duration            // for which systemd does not answer

	mu    sync.Mutex
	ended []string // of those left
}

func (u *commandUnits) Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (units.Outcome, error) {
	return u.run(ctx, unit, argv, env, limit)
}

func (u *commandUnits) Left(ctx context.Context, prefix string) (all []string, err error) {
	select {
	case <-time.After(u.away):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for unit := range u.left {
		if strings.HasPrefix(unit, prefix+"-") {
			all = append(all, unit)
		}
	}
	return all, nil
}

func (u *commandUnits) End(ctx context.Context, unit string) error {
	select {
	case <-time.After(u.left[unit]):
	case <-ctx.Done():
		return ctx.Err()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = append(u.ended, unit)
	return nil
}

// start returns a Gate that runs until the test ends.
func start(t *testing.T, w *world, change ...func(*Config)) *Gate {
	g := prepare(w, change...)
	begin(t, g, w)
	return g
}

// prepare makes a Gate that does not run.
func prepare(w *world, change ...func(*Config)) *Gate {
	w.holds, w.named = map[uint32][]openers.Opener{}, map[device.PodUID]device.Pod{}
	c := Config{
		Openers: func(r device.ResourceName) bool { return r == gpu }, Command: func(device.ResourceName) []string { return []string{} },
		Timeout: time.Minute, Finder: w, Nodes: w, SeesRuntime: func() bool { return true }, Units: &commandUnits{run: w.run}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	}
	for _, f := range change {
		f(&c)
	}
	return New(c)
}

// begin runs a Gate until the test ends.
func begin(t *testing.T, g *Gate, w *world) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx, Neighbours{w, w}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func commands(argv ...string) func(*Config) {
	return func(c *Config) {
		c.Openers = func(device.ResourceName) bool { return false }
		c.Command = func(device.ResourceName) []string { return argv }
	}
}

// gone is an ended pod that had these devices, gpu0 and so on, with a control node of the vendor's.
func gone(uid device.PodUID, r device.ResourceName, numbers ...int) device.Departure {
	s := device.Share{Resource: r, Grant: device.Grant{Nodes: []device.Node{{HostPath: "/dev/nvidiactl"}}}}
	for _, n := range numbers {
		s.IDs = append(s.IDs, device.ID(fmt.Sprintf("gpu%d", n)))
		s.Grant.Nodes = append(s.Grant.Nodes, device.Node{HostPath: fmt.Sprintf("/dev/gpu%d", n)})
	}
	return device.Departure{
		Pod:         device.Pod{Namespace: "default", Name: string(uid), UID: uid},
		Assignments: []device.Assignment{{Container: device.Container{Pod: uid, Name: "main"}, Shares: []device.Share{s}}},
	}
}

func expect(t *testing.T, g *Gate, d device.Departure, want string) {
	t.Helper()
	got := "free"
	if r := g.Release(d); r != nil {
		got = r.String()
	}
	if got != want {
		t.Errorf("%s: %s, want %s", d.Pod.UID, got, want)
	}
}

var trainer = openers.Process{PID: 1 << 30, Command: "trainer"} // no process has that number

func TestRelease_NothingRequired_FreeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w)
		expect(t, g, gone("a", nic, 0), "free")
		if len(w.searches) > 0 {
			t.Errorf("searched for %v", w.searches)
		}
	})
}

func TestSearch_DeviceOpen_NotFreeUntilItIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w)
		w.opens(1, trainer)
		a, b := gone("a", gpu, 1), gone("b", gpu, 2)
		g.Release(a)
		synctest.Wait()
		g.Release(b)
		synctest.Wait()
		expect(t, g, a, "process 1073741824 (trainer) has /dev/gpu1 open")
		expect(t, g, b, "free")
		time.Sleep(time.Hour)
		expect(t, g, a, "process 1073741824 (trainer) has /dev/gpu1 open")
		if n := len(w.searches); n < 60 || n > 80 { // after 1, 2, 4 ... 60 s
			t.Errorf("%d searches within an hour", n)
		}
		w.closes(1)
		time.Sleep(time.Minute)
		expect(t, g, a, "free")
		if want := []string{"char 240:1", "char 240:2"}; !slices.Equal(w.searches[:2], want) {
			t.Errorf("searched for %q, want %q first", w.searches[:2], want)
		}
	})
}

// Searches take at most a twentieth of one core, and one answers for all that wait.
func TestSearch_ManyReleases_ShareSearches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{cpu: 100 * time.Millisecond}
		g := start(t, w)
		var all []device.Departure
		for i := range 1000 {
			all = append(all, gone(device.PodUID(fmt.Sprint(i)), gpu, i))
			g.Release(all[i])
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		for _, d := range all {
			expect(t, g, d, "free")
		}
		if n := len(w.searches); n > 30+51+1 || n < 30 {
			t.Errorf("%d searches of 100 ms within 102 s, want at most 5 %% of that time and 3 s", n)
		}
	})
}

func TestSearch_CannotLook_NotFree(t *testing.T) {
	for name, c := range map[string]struct {
		break_ func(*world)
		want   string
	}{
		"no answer":          {func(w *world) { w.err = errors.New("connection refused") }, "it is not known whether other processes use the devices: connection refused"},
		"in a container":     {func(w *world) { w.namespace = "pid:[1]" }, "it is not known whether other processes use the devices: devmgrd openers sees the processes of its own container only: it needs the host's PID namespace (hostPID: true)"},
		"process is exiting": {func(w *world) { w.unknown = []openers.Unknown{{Process: trainer, Reason: "is exiting"}} }, "process 1073741824 (trainer) may use the devices: it is exiting"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				g := start(t, w)
				c.break_(w)
				a := gone("a", gpu, 1)
				g.Release(a)
				time.Sleep(time.Minute)
				expect(t, g, a, c.want)
				w.mu.Lock()
				w.err, w.namespace, w.unknown = nil, "", nil
				w.mu.Unlock()
				time.Sleep(time.Minute)
				expect(t, g, a, "free")
			})
		})
	}
}

// Nodes that several devices share say nothing about one of them: known ones, and those of other devices' grants.
func TestSearch_SharedNodes_AreLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w)
		w.opens(99, trainer) // the control node
		own := func(uid device.PodUID, n int) device.Departure {
			d := gone(uid, gpu, n)
			d.Assignments[0].Shares[0].Grant.Nodes[0].HostPath = "/dev/vendor-control"
			return d
		}
		a, b := own("a", 1), own("b", 2)
		w.departed = []device.Departure{a}
		g.Release(a)
		synctest.Wait()
		expect(t, g, a, "process 1073741824 (trainer) has /dev/vendor-control open")
		w.mu.Lock()
		w.departed = append(w.departed, b) // with another device, and the same control node
		w.mu.Unlock()
		g.Release(b)
		time.Sleep(time.Minute)
		expect(t, g, b, "free")
		expect(t, g, a, "free")
		c := gone("c", gpu, 3)
		g.Release(c)
		time.Sleep(time.Second)
		expect(t, g, c, "free")
	})
}

func TestSearch_IgnoredProcesses_DoNotCount(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	stat := info.Sys().(*syscall.Stat_t)
	file := openers.File{Device: stat.Dev, Inode: stat.Ino}
	const uid = "11111111-2222-3333-4444-555555555555"
	inPod := "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-abc.scope"
	for name, c := range map[string]struct {
		process openers.Process
		want    string
	}{
		"a service of the host":                     {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/system.slice/other.service", Root: true}, "free"},
		"a user who runs that executable":           {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/user.slice/user-1000.slice/session-1.scope"}, "process 1073741824 (agent) has /dev/gpu1 open"},
		"a service without root's rights":           {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/system.slice/agent.service"}, "free"},
		"a user's service of that name":             {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/user.slice/user-1000.slice/user@1000.service/app.slice/agent.service"}, "process 1073741824 (agent) has /dev/gpu1 open"},
		"a user's cgroup named like a monitor's":    {openers.Process{PID: 1 << 30, Command: "dcgm", Cgroup: "/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid}, "process 1073741824 (dcgm) has /dev/gpu1 open"},
		"a container of root nested elsewhere":      {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/system.slice/docker-0.scope/kubepods/poda/0", Root: true}, "process 1073741824 (agent) has /dev/gpu1 open"},
		"a container with that executable":          {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: file, Cgroup: "/kubepods/burstable/pod" + strings.ReplaceAll(uid, "5", "6") + "/abc", Root: true}, "process 1073741824 (agent) of the pod with UID 11111111-2222-3333-4444-666666666666 has /dev/gpu1 open"},
		"a service that calls itself so":            {openers.Process{PID: 1 << 30, Command: "agent", ExeFile: openers.File{Device: 1, Inode: 2}}, "process 1073741824 (agent) has /dev/gpu1 open"},
		"a monitor's pod":                           {openers.Process{PID: 1 << 30, Command: "dcgm", Cgroup: inPod}, "free"},
		"a pod of another namespace with that name": {openers.Process{PID: 1 << 30, Command: "dcgm", Cgroup: strings.ReplaceAll(inPod, "5", "7")}, "process 1073741824 (dcgm) of pod tenant/dcgm-x has /dev/gpu1 open"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{}
				g := start(t, w, func(c *Config) { c.Ignore = []string{self, "agent.service", "monitoring/dcgm-*"} })
				w.named[uid] = device.Pod{Namespace: "monitoring", Name: "dcgm-x", UID: uid}
				other := device.PodUID(strings.ReplaceAll(uid, "5", "7"))
				w.named[other] = device.Pod{Namespace: "tenant", Name: "dcgm-x", UID: other}
				w.opens(1, c.process)
				a := gone("a", gpu, 1)
				g.Release(a)
				synctest.Wait()
				expect(t, g, a, c.want)
			})
		})
	}
}

// A process that could not be seen keeps the devices that it may have come by.
func TestSearch_ProcessUnknown_KeepsWhatItCouldHold(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	for name, c := range map[string]struct {
		cgroup   string
		pod      device.Pod // zero: it is not known
		confined bool
		want     string
	}{
		"a confined pod of another namespace":      {"/kubepods/burstable/pod" + uid + "/0", device.Pod{Namespace: "tenant", Name: "bomb", UID: uid}, true, "free"},
		"a confined pod of the same namespace":     {"/kubepods/burstable/pod" + uid + "/0", device.Pod{Namespace: "default", Name: "bomb", UID: uid}, true, "process 1073741824 (x) of pod default/bomb may use the devices: it is exiting"},
		"a pod with a directory of the host":       {"/kubepods/burstable/pod" + uid + "/0", device.Pod{Namespace: "tenant", Name: "bomb", UID: uid}, false, "process 1073741824 (x) of pod tenant/bomb may use the devices: it is exiting"},
		"a pod that is not known":                  {"/kubepods/burstable/pod" + uid + "/0", device.Pod{}, true, "process 1073741824 (x) of the pod with UID " + uid + " may use the devices: it is exiting"},
		"a process of the host":                    {"/system.slice/a.service", device.Pod{Namespace: "tenant", Name: "bomb", UID: uid}, true, "process 1073741824 (x) may use the devices: it is exiting"},
		"a user's cgroup named after such a pod's": {"/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid, device.Pod{Namespace: "tenant", Name: "bomb", UID: uid}, true, "process 1073741824 (x) may use the devices: it is exiting"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{unknown: []openers.Unknown{{Process: openers.Process{PID: 1 << 30, Command: "x", Cgroup: c.cgroup}, Reason: "is exiting"}}}
				g := start(t, w)
				w.confined = map[device.PodUID]bool{uid: c.confined}
				if c.pod.UID != "" {
					w.named[uid] = c.pod
				}
				a := gone("a", gpu, 1)
				g.Release(a)
				synctest.Wait()
				expect(t, g, a, c.want)
			})
		})
	}
}

// A failure that the allocator remembers is not tried again.
// Another pod keeps the device, and has been granted another node of it.
func TestSearch_NodesOfAKeptDevice_NoCommandRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, func(c *Config) { c.Command = func(device.ResourceName) []string { return []string{"/reset"} } })
		w.opens(1, trainer)
		a := gone("a", gpu, 1)
		a.Assignments[0].Shares[0].IDs = nil
		g.Release(a)
		time.Sleep(time.Second)
		expect(t, g, a, "process 1073741824 (trainer) has /dev/gpu1 open")
		w.closes(1)
		time.Sleep(time.Minute)
		expect(t, g, a, "free")
		if len(w.runs) > 0 {
			t.Errorf("%v has run", w.runs)
		}
	})
}

// The pod used its devices again: what was proved before is void.
func TestForget_ProofBeginsAfresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w)
		a := gone("a", gpu, 1)
		g.Release(a)
		synctest.Wait()
		expect(t, g, a, "free")
		w.opens(1, trainer)
		g.Forget("a")
		g.Release(a)
		synctest.Wait()
		expect(t, g, a, "process 1073741824 (trainer) has /dev/gpu1 open")
		g.Forget("a")
		time.Sleep(time.Hour)
		if n := len(w.searches); n != 2 {
			t.Errorf("%d searches, want none for a pod that is forgotten", n-2)
		}
	})
}

// The end of the holder starts a search, an hour before the next one is due.
func TestWatch_HolderEnds_IsNoticedAtOnce(t *testing.T) {
	holder := exec.Command("sleep", "600")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer holder.Process.Kill()
	pid := holder.Process.Pid
	w := &world{}
	g := start(t, w)
	w.opens(1, openers.Process{PID: pid, Started: openers.Started(pid), Command: "sleep"})
	a := gone("a", gpu, 1)
	for r := g.Release(a); len(r.Holders) == 0; r = g.Release(a) {
		<-g.Changed()
	}
	g.mu.Lock()
	g.proofs["a"].due = time.Now().Add(time.Hour)
	g.mu.Unlock()
	w.closes(1)
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for g.Release(a) != nil {
		<-g.Changed()
	}
}

// devmgrd stops while a process that it watches lives.
func TestRun_HolderLives_Ends(t *testing.T) {
	holder := exec.Command("sleep", "600")
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer holder.Process.Kill()
	pid := holder.Process.Pid
	w := &world{}
	g := start(t, w) // the end of the test waits for Run
	w.opens(1, openers.Process{PID: pid, Started: openers.Started(pid), Command: "sleep"})
	for r := g.Release(gone("a", gpu, 1)); len(r.Holders) == 0; r = g.Release(gone("a", gpu, 1)) {
		<-g.Changed()
	}
}

// Twenty pods with very many files take ten times what all others take of a search.
func TestSearch_VeryManyFilesOfSomePods_NextSearchComesSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{cpu: 11 * time.Second, files: 1_100_000, over: 1_000_000}
		g := start(t, w)
		g.Release(gone("a", gpu, 1))
		synctest.Wait()
		expect(t, g, gone("a", gpu, 1), "free")
		// Of the minute before, 20 s for the others and 10 s for the pods are used up.
		for i, after := range []time.Duration{0, 0, 30 * time.Second, 30 * time.Second} {
			d := gone(device.PodUID(fmt.Sprint("b", i)), gpu, 2+i)
			began := time.Now()
			g.Release(d)
			for synctest.Wait(); g.Release(d) != nil; synctest.Wait() {
				time.Sleep(time.Second)
			}
			if took := time.Since(began); took > after {
				t.Errorf("search %d comes after %v, want %v", i, took, after)
			}
		}
	})
}

// A resource is forgotten once no pod has its devices: so are its series and what has been logged of it.
func TestForgetResource_SeriesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		series := func() (n int) {
			all, err := registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range all {
				if f.GetName() == "devmgrd_release_commands_total" {
					n = len(f.GetMetric())
				}
			}
			return n
		}
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, commands("/reset"), func(c *Config) { c.Metrics = registry })
		g.firstBlind(gpu)
		g.Release(gone("a", gpu, 1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := series(); n != 1 {
			t.Fatalf("%d series after a command", n)
		}
		g.Forget("a")
		g.ForgetResource(gpu)
		if n := series(); n != 0 || len(g.blind) > 0 {
			t.Errorf("%d series, and %v, are left", n, g.blind)
		}
	})
}
