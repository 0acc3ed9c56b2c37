package reclaim

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
	"github.com/devmgrd/devmgrd/internal/units"
)

const (
	// share is the inverse of the part of one core that searches for openers take on average: 5 %.
	share = 20
	// saved is the time whose part searches may take at once after a pause.
	saved = time.Minute
	// maxOver is the longest pause for what a search spends on pods and processes with too many files: these do not choose how long others wait.
	maxOver = 10 * time.Second
	// firstRetry and lastRetry are the shortest and the longest pause before a proof is tried again.
	firstRetry, lastRetry = time.Second, time.Minute
	// nodesLimit bounds the look at the nodes of one pod.
	nodesLimit = 5 * time.Second
	// searchLimit bounds one search.
	searchLimit = time.Minute
	// maxHolders bounds the processes that are named, and watched, for one pod.
	maxHolders = 16
)

// A Finder looks for the processes that have devices open or mapped, as openers.Client does.
type Finder interface {
	Find(context.Context, []openers.Device) (openers.Scan, error)
}

// Nodes finds the host's device nodes of a grant that exist now, without those that a CDI specification has for all of its devices.
type Nodes interface {
	Of(context.Context, device.ResourceName, device.Grant) ([]device.HostNode, error)
}

// Pods knows pods of this node.
type Pods interface {
	// Named returns the pod of that UID, or false if it is not known.
	Named(device.PodUID) (device.Pod, bool)
	// Confined reports whether a pod is known to have nothing of the host's, by which it could have a device of a pod of another namespace.
	Confined(device.PodUID) bool
}

// Assignments knows which pods have which devices.
type Assignments interface{ Snapshot() *device.Snapshot }

// Units runs commands as units of systemd, as units.Systemd does.
type Units interface {
	// Run returns when systemd says that the unit has ended, also when ctx ends, which has it stopped.
	Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (units.Outcome, error)
	// Left returns the units that an earlier process of devmgrd has left, of those whose names begin with prefix.
	Left(ctx context.Context, prefix string) ([]string, error)
	// End has a unit stopped, and returns when it has ended, or ctx has.
	End(ctx context.Context, unit string) error
}

// Config is what New needs.
type Config struct {
	// Openers returns whether other processes are looked for before a resource's devices are free.
	Openers func(device.ResourceName) bool
	// Command returns the command that makes a resource's devices free for the next pod; empty: there is none.
	Command func(device.ResourceName) []string
	// Plugin returns the plugin of a resource: each has its share of the commands that run at once. nil: all resources have one.
	Plugin  func(device.ResourceName) units.Plugin
	Timeout time.Duration // of a command
	// Networks returns the files of a pod's network namespaces.
	Networks func(device.PodUID) []string
	// NetworkTimeout is for how long devices wait for the end of their pod's network namespaces; 0: not at all.
	NetworkTimeout time.Duration
	// Ignore are processes that may keep devices open: an absolute path is an executable of the host, and counts for processes of root that
	// belong to no pod. A name without a slash is a system service of systemd. Others are patterns of pods, namespace/name.
	Ignore      []string
	SharedNodes []string // patterns of device nodes that are no proof
	Finder      Finder
	Nodes       Nodes
	SeesRuntime func() bool // whether devmgrd's PID namespace shows the container runtime
	Units       Units
	Log         *slog.Logger
	Metrics     prometheus.Registerer
}

// A Gate proves that devices of ended pods are free. Its methods are safe for concurrent use and do not block.
type Gate struct {
	Config
	metrics *metrics
	changed chan struct{}
	wake    chan struct{}
	work    sync.WaitGroup
	turns   units.Turns
	networks

	neighbours Neighbours // of Run

	mu       locks.Mutex[locks.Proofs] // guards what follows; never held across I/O
	proofs   map[device.PodUID]*proof
	rested   time.Time                    // the next search may begin
	commands map[device.ResourceName]bool // whose command runs
	running  map[device.PodUID]int        // how many commands run for the devices of a pod; several after Forget
	looked   bool                         // left is known
	blind    map[device.ResourceName]bool // resources whose grants name no device node of their own
	left     map[string]bool              // units of commands that an earlier process of devmgrd has left, until they have ended
	closed   bool
}

// A proof is what is known about the devices of one ended pod. Gate.mu guards it.
type proof struct {
	device.Departure
	networks []string              // the files of its network namespaces that exist
	torn     time.Time             // when it stops waiting for their end
	searches bool                  // it needs a search
	commands []device.ResourceName // whose commands have not succeeded yet
	running  bool                  // a command is
	due      time.Time             // of the next search, or of the next run of a command
	retries  int
	result   *device.Release // nil: the devices are free
	unwatch  context.CancelFunc
	forget   context.CancelFunc
	ctx      context.Context // ends when the proof is forgotten
}

// New returns a Gate. Run makes it work.
func New(c Config) *Gate {
	return &Gate{
		Config: c, metrics: newMetrics(c.Metrics), changed: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		proofs: map[device.PodUID]*proof{}, commands: map[device.ResourceName]bool{}, running: map[device.PodUID]int{}, left: map[string]bool{}, blind: map[device.ResourceName]bool{},
		networks: networks{start: dirwatch.Start},
	}
}

// Neighbours are what a Gate asks while it runs. They may be nil.
type Neighbours struct {
	Assigned Assignments // of all pods; nil: no node is known to be shared by grants
	Pods     Pods        // nil: no pod's name is known
}

// Changed has a value when Release may return something else.
func (g *Gate) Changed() <-chan struct{} { return g.changed }

// Release begins or continues the proof for an ended pod. It returns nil once the devices are proved free, and until then what is
// known.
func (g *Gate) Release(d device.Departure) *device.Release {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.proofs[d.Pod.UID]; p != nil {
		return p.result
	}
	if g.closed {
		return &device.Release{Why: "devmgrd is stopping", Underway: true}
	}
	p := &proof{Departure: d, due: time.Now()}
	for _, s := range device.Shares(d.Assignments) {
		p.searches = p.searches || g.Openers(s.Resource)
		if len(s.IDs) > 0 && len(g.Command(s.Resource)) > 0 && !slices.Contains(p.commands, s.Resource) {
			p.commands = append(p.commands, s.Resource)
		}
	}
	if len(p.commands) == 0 {
		p.Failed = "" // the command is no longer configured
	}
	if g.NetworkTimeout > 0 {
		p.networks, p.torn = g.Networks(d.Pod.UID), p.due.Add(g.NetworkTimeout)
	}
	if len(p.networks) == 0 && !p.searches && len(p.commands) == 0 {
		return nil
	}
	p.ctx, p.forget = context.WithCancel(context.Background())
	g.proofs[d.Pod.UID] = p
	p.nextLocked()
	loops.Signal(g.wake)
	return p.result
}

// nextLocked sets what is known before the next step of a proof.
func (p *proof) nextLocked() {
	switch {
	case len(p.networks) > 0:
		p.result = &device.Release{Why: "the pod's network is being torn down: " + p.networks[0] + " exists", Failed: p.Failed}
	case p.searches:
		p.result = &device.Release{Why: "devmgrd is looking for other processes that use the devices", Failed: p.Failed, Underway: true}
	case p.Failed != "":
		p.result = &device.Release{Why: p.Failed, Failed: p.Failed}
	case len(p.commands) > 0:
		p.result = &device.Release{Why: "release.command of " + string(p.commands[0]) + " is due", Underway: true}
	default:
		p.result = nil
	}
}

// Forget ends a proof: the devices have been released, or the pod may use them again.
func (g *Gate) Forget(uid device.PodUID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.proofs[uid]; p != nil {
		p.forget()
		delete(g.proofs, uid)
	}
}

// ForgetResource forgets a resource of which no pod has devices.
func (g *Gate) ForgetResource(r device.ResourceName) {
	g.metrics.forget(r)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.blind, r)
}

// forgetAll ends all proofs, and what watches processes for them.
func (g *Gate) forgetAll() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, p := range g.proofs {
		p.forget()
	}
	clear(g.proofs)
}

// Running reports whether a command for a pod's devices runs, also after Forget, which stops it, and also one that an earlier process of
// devmgrd has started. Until these are known, one may run for each pod.
func (g *Gate) Running(uid device.PodUID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.running[uid] > 0 || g.leftLocked(podOfUnit, string(uid))
}

// leftLocked reports whether a command that an earlier process of devmgrd has started may still run in a unit whose name has this part.
func (g *Gate) leftLocked(part int, text string) bool {
	if !g.looked {
		return true
	}
	for unit := range g.left {
		if units.Has(unit, unitPrefix, part, text) {
			return true
		}
	}
	return false
}

// Run works on the proofs until ctx ends, which is not an error. Call it once.
func (g *Gate) Run(ctx context.Context, with Neighbours) error {
	g.neighbours = with
	defer g.work.Wait()
	defer g.forgetAll()
	g.work.Go(func() { g.endLeft(ctx) })
	defer g.networks.watch(false)
	for {
		again := g.lookAtNetworks()
		again = loops.Earliest(again, g.step(ctx))
		due := loops.At(again)
		removed, missed := g.networks.changes()
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		case <-removed:
		case <-missed:
			g.networks.watch(false) // the next look starts another
		case <-due:
		}
	}
}

// leftLimit is how long systemd may take to say which units there are before that is logged.
const leftLimit = 10 * time.Second

// endLeft ends the commands that an earlier process of devmgrd has left: their results are lost.
func (g *Gate) endLeft(ctx context.Context) {
	late := time.AfterFunc(leftLimit, func() {
		g.Log.Warn("systemd does not say which commands of an earlier process run; devices of pods that have ended wait, and so do pods with devices")
	})
	all, err := g.Units.Left(ctx, unitPrefix)
	late.Stop()
	if err != nil {
		return // devmgrd ends
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looked = true
	for _, unit := range all {
		g.left[unit] = true
		g.work.Go(func() {
			if err := g.Units.End(ctx, unit); err != nil {
				return // devmgrd ends; the next process finds the unit
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.left, unit)
			loops.Signal(g.changed)
			loops.Signal(g.wake)
		})
	}
	loops.Signal(g.changed)
	loops.Signal(g.wake)
}

// step does what is due, and returns when to come again; zero: after the next wake.
func (g *Gate) step(ctx context.Context) (again time.Time) {
	g.mu.Lock()
	now := time.Now()
	var searches []*proof
	for _, p := range g.proofs {
		switch {
		case p.result == nil || p.running || len(p.networks) > 0:
		case !p.searches && p.Failed != "": // the operator decides
		case now.Before(p.due):
			again = loops.Earliest(again, p.due)
		case p.searches && now.Before(g.rested):
			again = loops.Earliest(again, g.rested)
		case p.searches:
			searches = append(searches, p)
		case g.commands[p.commands[0]], g.leftLocked(resourceOfUnit, string(p.commands[0])): // its end wakes
		default:
			g.runLocked(ctx, p)
		}
	}
	g.mu.Unlock()
	if len(searches) == 0 {
		return again
	}
	g.search(ctx, searches)
	return time.Now() // for what the search has changed
}

// retryLocked has a step of a proof repeated after a pause.
func (p *proof) retryLocked() {
	p.due = time.Now().Add(loops.Doubled(firstRetry, lastRetry, p.retries))
	p.retries++
}

// A look is the part of a search that is about one proof.
type look struct {
	*proof
	nodes   map[openers.Device]string // the paths of the pod's own device nodes
	holders []device.Process
	watched []openers.Process // of these
	err     error
}

// search looks for openers of the devices of several proofs.
func (g *Gate) search(ctx context.Context, proofs []*proof) {
	shared := g.shared()
	searched := map[openers.Device]bool{}
	all := lists.Map(proofs, func(p *proof) *look {
		nodes, err := g.own(ctx, p, shared)
		for d := range nodes {
			searched[d] = true
		}
		return &look{proof: p, nodes: nodes, err: err}
	})
	wanted := slices.Collect(maps.Keys(searched))
	var scan openers.Scan
	for part := range slices.Chunk(wanted, openers.MaxDevices) {
		limited, cancel := context.WithTimeout(ctx, searchLimit)
		one, err := g.Finder.Find(limited, part)
		cancel()
		g.metrics.searched(one)
		g.mu.Lock()
		if earliest := time.Now().Add(-saved); g.rested.Before(earliest) {
			g.rested = earliest
		}
		g.rested = g.rested.Add(pause(one))
		g.mu.Unlock()
		if err == nil && !g.seesAll(one) {
			err = errors.New("devmgrd openers sees the processes of its own container only: it needs the host's PID namespace (hostPID: true)")
		}
		if err != nil {
			for _, p := range all {
				if slices.ContainsFunc(part, func(d openers.Device) bool { return p.nodes[d] != "" }) {
					p.err = err
				}
			}
			continue
		}
		scan.Openers, scan.More, scan.Unknown = append(scan.Openers, one.Openers...), append(scan.More, one.More...), append(scan.Unknown, one.Unknown...)
	}
	ignored := g.ignored()
	for _, p := range all { // without the lock: naming a pod takes that of the pods
		p.holders, p.watched = g.holders(p.Pod, p.nodes, scan, ignored)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range all {
		if p.ctx.Err() != nil {
			continue
		}
		before := p.result
		switch {
		case p.err != nil:
			p.result = &device.Release{Why: "it is not known whether other processes use the devices: " + p.err.Error(), Failed: p.Failed}
			p.retryLocked()
		case len(p.holders) > 0:
			p.result = &device.Release{Why: "other processes use the devices", Holders: p.holders, Failed: p.Failed}
			p.retryLocked()
			g.watchLocked(p.proof, p.watched)
		default:
			if p.unwatch != nil {
				p.unwatch()
			}
			p.searches, p.retries, p.due = false, 0, time.Now()
			p.nextLocked()
		}
		if before != p.result {
			loops.Signal(g.changed)
		}
	}
}

// pause returns the time that a search takes off the next ones.
func pause(s openers.Scan) time.Duration {
	var over time.Duration
	if s.Files > 0 {
		over = time.Duration(float64(s.CPU) * float64(s.Over) / float64(s.Files))
	}
	return share*(s.CPU-over) + min(share*over, maxOver)
}

// seesAll reports whether a search has seen the processes of all containers: it was made in the machine's first PID namespace, or in
// devmgrd's own, which shows the container runtime. The latter is so where the whole node is in a container.
func (g *Gate) seesAll(s openers.Scan) bool {
	if s.Namespace == "" {
		return true
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && own == s.Namespace && g.SeesRuntime()
}

// own returns the device nodes that are a pod's alone, by number.
func (g *Gate) own(ctx context.Context, p *proof, shared func(node string) bool) (map[openers.Device]string, error) {
	ctx, cancel := context.WithTimeout(ctx, nodesLimit)
	defer cancel()
	all := map[openers.Device]string{}
	for _, s := range device.Shares(p.Assignments) {
		if !g.Openers(s.Resource) {
			continue
		}
		nodes, err := g.Nodes.Of(ctx, s.Resource, s.Grant)
		if err != nil {
			return nil, err
		}
		found := false
		for _, n := range nodes {
			if !shared(n.Path) {
				found = true
				all[openers.Device{Block: n.Kind == "b", Major: uint32(n.Major), Minor: uint32(n.Minor)}] = n.Path
			}
		}
		if !found && len(s.IDs) > 0 && g.firstBlind(s.Resource) {
			g.Log.Warn("release.check: openers proves nothing: grants of the resource name no device node of their own", "resource", s.Resource, "pod", p.Pod.String())
		}
	}
	return all, nil
}

// firstBlind records that a resource's grants name no device node of their own, and reports whether that is new.
func (g *Gate) firstBlind(r device.ResourceName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.blind[r]
	g.blind[r] = true
	return !was
}

// ignored returns a function that reports whether a process may keep devices open. A user's process may run any executable with code of its
// own in it, so an executable counts only for root; a daemon that drops root's rights is named by its service.
func (g *Gate) ignored() func(openers.Process, device.Pod) bool {
	services := slices.DeleteFunc(slices.Clone(g.Ignore), func(name string) bool { return strings.Contains(name, "/") })
	var executables []openers.File
	for _, name := range g.Ignore {
		if !path.IsAbs(name) {
			continue
		}
		if info, err := os.Stat(name); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				executables = append(executables, openers.File{Device: stat.Dev, Inode: stat.Ino})
			}
		}
	}
	return func(p openers.Process, pod device.Pod) bool {
		if pod.UID == "" {
			return p.Root && slices.Contains(executables, p.ExeFile) && !strings.Contains(p.Cgroup, "kubepods") || slices.ContainsFunc(services, func(s string) bool { return cgroups.InService(p.Cgroup, s) })
		}
		return pod.Name != "" && slices.ContainsFunc(g.Ignore, func(pattern string) bool {
			matches, err := path.Match(pattern, pod.String())
			return err == nil && matches
		})
	}
}

// holders returns the processes of a search that keep the devices of an ended pod, and those of them to watch. A process that could not be seen
// may hold any device that it could have come by. That leaves out pods of other namespaces that have nothing of the host's: they cannot open
// the device, nor share a directory or a namespace with the ended pod to be passed a descriptor.
func (g *Gate) holders(ended device.Pod, nodes map[openers.Device]string, scan openers.Scan, ignored func(openers.Process, device.Pod) bool) (all []device.Process, pids []openers.Process) {
	add := func(p openers.Process, pod device.Pod, holds string) {
		if len(all) < maxHolders {
			all = append(all, device.Process{PID: p.PID, Command: strings.ToValidUTF8(p.Command, "\uFFFD"), Pod: pod, Holds: holds})
			pids = append(pids, p)
		}
	}
	for _, o := range scan.Openers {
		node, own := nodes[o.Device]
		if !own {
			continue
		}
		if pod := g.podOf(o.Cgroup); !ignored(o.Process, pod) {
			add(o.Process, pod, "has "+node+" "+string(o.How))
		}
	}
	if len(nodes) == 0 {
		return nil, nil
	}
	for _, d := range scan.More { // those beyond the named ones may be anything
		if node, own := nodes[d]; own && !slices.ContainsFunc(all, func(p device.Process) bool { return strings.Contains(p.Holds, node) }) {
			all = append(all, device.Process{Holds: "have " + node + " open, too many to name"})
		}
	}
	for _, u := range scan.Unknown {
		pod := g.podOf(u.Cgroup)
		apart := pod.Name != "" && pod.Namespace != ended.Namespace && g.neighbours.Pods.Confined(pod.UID)
		if !apart && !ignored(u.Process, pod) {
			add(u.Process, pod, "may use the devices: it "+u.Reason)
		}
	}
	return all, pids
}

// podOf returns the pod that a cgroup belongs to; zero: none.
func (g *Gate) podOf(cgroup string) device.Pod {
	uid := cgroups.PodOf(cgroup)
	if uid != "" && g.neighbours.Pods != nil {
		if named, known := g.neighbours.Pods.Named(uid); known {
			return named
		}
	}
	return device.Pod{UID: uid}
}

// unitPrefix begins the names of the commands' units; the pod's UID and the resource follow.
const (
	unitPrefix                = "devmgrd-release"
	podOfUnit, resourceOfUnit = 0, 1
)

// runLocked starts the next command of a proof.
func (g *Gate) runLocked(ctx context.Context, p *proof) {
	r := p.commands[0]
	uid := p.Pod.UID
	g.commands[r], p.running = true, true
	g.running[uid]++
	p.result = &device.Release{Why: "release.command of " + string(r) + " is running", Underway: p.retries == 0}
	loops.Signal(g.changed)
	g.work.Go(func() {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(p.ctx, stop)()
		again, err := g.command(ctx, p.Departure, r)
		g.metrics.commanded(r, err, again)
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.commands, r)
		g.running[uid]--
		if g.running[uid] == 0 {
			delete(g.running, uid)
		}
		p.running = false
		switch {
		case ctx.Err() != nil: // the pod may use the devices again; or devmgrd ends, and begins the proof again after its start
		case err != nil && again:
			p.result = &device.Release{Why: err.Error()}
			p.retryLocked()
		case err != nil:
			g.Log.Error("the devices stay out of service until devmgrd uncordon", "pod", p.Pod.String(), "uid", p.Pod.UID, "err", err)
			p.Failed = err.Error()
			p.nextLocked()
		default:
			p.commands, p.retries = p.commands[1:], 0
			p.nextLocked()
		}
		loops.Signal(g.changed)
		loops.Signal(g.wake)
	})
}

// tryAgain is the exit code of a command that may succeed later: EX_TEMPFAIL of sysexits.h.
const tryAgain = 75

// judge returns why a command has not succeeded, and whether it may later.
func judge(o units.Outcome) (again bool, err error) {
	switch {
	case o.TimedOut:
		return false, errors.New("has not ended within release.timeout")
	case o.Signal != "":
		return false, fmt.Errorf("was ended by signal %s", o.Signal)
	case o.Code == tryAgain:
		return true, errors.New("asks for more time (exit code 75)")
	case o.Code != 0:
		return false, fmt.Errorf("has failed with exit code %d", o.Code)
	}
	return false, nil
}
