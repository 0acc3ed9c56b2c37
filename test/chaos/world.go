package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// What can go wrong.
const (
	failed    = "pods failed for a device reason"
	bare      = "containers that started without their devices"
	twoHands  = "devices in two hands"
	changed   = "containers that came back with other devices"
	number    = "times the Node showed less than its pods asked for, for 3 s"
	promised  = "times the Node showed more than there is, for longer than a fall takes"
	taken     = "containers that started with a device that another process had open"
	idle      = "times devices stayed out of service when no process had them open"
	early     = "times a flapping device was not suspended for as long as it should be"
	late      = "times a device stayed suspended for longer than it should be"
	waits     = "pods that waited for a device that is refused, with others free"
	stuck     = "pods that did not run, or end, when all was well"
	leak      = "devices that could not be had when all pods were gone"
	crash     = "crashes of a process that was not killed"
	claimed   = "containers with other devices than their claim's"
	unsliced  = "times the slices did not show all devices when no pod had them"
	twice     = "times the Node's number and the slices showed devices, for 10 s"
	unclaimed = "claims that were left when all pods were gone"
	away      = "times the number left the Node although a plugin served, for 3 s"
	nowhere   = "times free devices were neither in the number nor in the slices, for 30 s"
	rivalled  = "times a number that another writer wrote stayed on the Node, for 3 s"
	networked = "devices given to the next pod before the former pod's network was torn down"
)

var kinds = []string{failed, bare, twoHands, changed, number, promised, taken, idle, early, late, waits, stuck, leak, claimed, unsliced, twice, unclaimed, away, nowhere, rivalled, networked, crash}

// A world is the node with all that can be broken on it. Its fields are the player's, but for what the mutex guards.
type world struct {
	*cluster.Cluster
	options  options
	node     *node.Node       // nil: without devmgrd
	devmgrd  *cluster.Process // the same
	openers  *cluster.Process // the same: devmgrd openers
	gate     *gate            // the same
	plugin   *cluster.Process
	second   *cluster.Process // another plugin of the resource, see surge
	mute     *cluster.Process // likewise
	long     *cluster.Process // the plugin of the resource with the long name; nil: without devmgrd
	attacker *cluster.Process // nil: none
	hostile  *neighbours      // nil: none
	open     bool             // no policy has pods require devmgrd
	keeper   *keeper
	began    time.Time

	pods       []string // that should be there
	named      int
	later      sync.WaitGroup // what ends on its own, or when all is repaired
	repairing  chan struct{}  // closed when it is
	cut        bool           // the API server has been away
	renamed    int            // how often the plugin has renamed its devices
	boots      atomic.Int64   // how often the power has been cut and has come back: odd while it is cut
	hung       *os.File       // keeps the plugin's mounts hanging
	hardware   []*os.File     // the plugin's devices
	unplugged  chan struct{}  // closed when the power is cut
	settings   string         // of devmgrd
	looks      bool           // devmgrd looks for other processes
	offered    bool           // devmgrd offers the resource through DRA
	plan       plan           // of the sequence
	trials     trials         // of the sequence
	kinds      *rand.Rand     // how the next pods ask for devices; nil: they request the resource
	ways       *rand.Rand     // likewise, in several ways at once; nil: they do not
	asked      map[string]shape
	sizes      map[string]int   // devices of the claims of pods' authors
	surged     bool             // a second plugin has been started in this sequence
	rivals     int              // how often another writer has set the number in this sequence
	blocked    bool             // slices cannot be written
	unwritable atomic.Bool      // the same, for those who watch
	pinned     atomic.Bool      // likewise, and so the number has to stay
	bySlices   atomic.Bool      // offered, for those who watch
	claimed    map[int][]string // claims of pods' authors, by the number of devices
	through    int              // sequences through DRA
	unclaimed  map[string]bool  // pods whose claim the kubelet has lost, see lostClaim
	forgot     int              // how often kube-scheduler had to be restarted, see scheduled
	claims     *claimView

	watching context.CancelFunc
	watchers sync.WaitGroup

	mu     sync.Mutex
	story  []string       // of this sequence
	wrongs map[string]int // of all
	now    map[string]int // of this sequence

	holds       []hold
	kept        int                   // holds in all
	suspensions map[string]suspension // the latest of each device
	announced   int                   // suspensions in all
	created     map[string]time.Time  // the pods
	uses        map[string]string     // the claims of pods' authors, by pod
}

// newWorld brings up the node, with the plugin, and those who watch.
func newWorld(ctx context.Context, o options) (*world, error) {
	w := &world{
		options: o, began: time.Now(), wrongs: map[string]int{}, now: map[string]int{}, suspensions: map[string]suspension{},
		created: map[string]time.Time{}, unplugged: make(chan struct{}), asked: map[string]shape{}, unclaimed: map[string]bool{}, sizes: map[string]int{}, claimed: map[int][]string{}, uses: map[string]string{},
	}
	shape := cluster.Options{Dir: o.logs, KubeletConfig: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	shape.CNI = networkPlugin(self)
	if err := errors.Join(os.MkdirAll(hostLibs, 0o755), Mood{}.write()); err != nil {
		return nil, err
	}
	w.hardware, err = makeDevices()
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	sockets := "/var/lib/kubelet/device-plugins"
	if o.kubelet {
		err = w.startCluster(ctx, shape)
	} else {
		sockets = node.SocketDir
		err = w.startNode(ctx, shape, self)
	}
	if err != nil {
		return nil, err
	}
	plugin := func(process, name string) *cluster.Process {
		return cluster.NewProcess(process, filepath.Join(w.LogDir(), process+".log"), []string{self, "plugin", sockets, name}, nil)
	}
	w.plugin, w.second, w.mute = plugin("plugin", firstPlugin), plugin("second-plugin", surgePlugin), plugin("mute-plugin", mutePlugin)
	w.keeper = &keeper{say: w.say}
	for _, p := range []*cluster.Process{w.APIServer, w.Runtime, w.Kubelet, w.Scheduler, w.ControllerManager} {
		w.keeper.keep(p, true) // a kubelet ends if it finds no runtime, and so on
	}
	w.keeper.keep(w.plugin, false)
	w.keeper.keepDown(w.second)
	w.keeper.keepDown(w.mute)
	if w.devmgrd != nil {
		w.long = plugin("long-plugin", longPlugin)
		w.keeper.keep(w.long, false)
		if err := w.long.Start(ctx); err != nil {
			return nil, errors.Join(err, w.stop())
		}
		w.keeper.keep(w.devmgrd, false)
		w.keeper.keep(w.openers, false)
	}
	if err := w.plugin.Start(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	if o.attacker {
		if err := errors.Join(w.addAttacker(ctx, self), w.addNeighbours(ctx, self)); err != nil {
			return nil, errors.Join(err, w.stop())
		}
	}
	w.watch()
	if err := w.eventually(ctx, settleLimit, func() (bool, string) { return w.shows(ctx, deviceCount) }); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *world) startCluster(ctx context.Context, shape cluster.Options) error {
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return err
	}
	w.Cluster, err = cluster.Start(ctx, tools, shape)
	return err
}

// startNode starts devmgrd too. Its state file is on a disk of its own, which can be filled, and behind a gate.
func (w *world) startNode(ctx context.Context, shape cluster.Options, self string) error {
	var err error
	w.gate, err = newGate(gateSocket, stateFile)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(node.StateDir, 0o700); err != nil {
		return err
	}
	size := "size=4m"
	if w.options.attacker {
		size = "size=64m" // the lists of its plugin are saved, and devmgrd is not ready while the disk is full
	}
	if err := unix.Mount("chaos", node.StateDir, "tmpfs", 0, size); err != nil {
		return fmt.Errorf("making a small disk: %w", err)
	}
	if err := w.write(); err != nil {
		return err
	}
	n, err := node.Start(ctx, node.Options{Cluster: shape, Under: []string{self, "gated", gateSocket}, Args: []string{"--config", settingsFile}})
	if err != nil {
		return err
	}
	w.Cluster, w.node, w.devmgrd = n.Cluster, n, n.Devmgrd
	w.openers = cluster.NewProcess("openers", filepath.Join(w.LogDir(), "openers.log"), w.node.Command(ctx, "openers", "--config", settingsFile).Args, nil)
	w.claims = newClaimView(w)
	return errors.Join(w.openers.Start(ctx), n.FailClosed(ctx), w.addClaims(ctx), w.addBlock(ctx))
}

// watch starts those who look whether all is right, and the keeper.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	w.watching = cancel
	w.watchers.Go(func() { w.keeper.Run(ctx) })
	t := newTruth(w)
	v := &apiView{cluster: w.Cluster, say: w.say, publisher: w.publisher().Pid, awake: w.awake, pinned: w.pinned.Load, slices: w.bySlices.Load, disturbed: w.disturbed, shakes: w.shakes, claimed: w.claims.count, networks: newNetworks(networkLog), failed: map[string]bool{}}
	looks := []func(time.Time){t.look, func(now time.Time) { v.look(ctx, now) }}
	if w.claims != nil {
		looks = append(looks, func(now time.Time) { w.claims.look(ctx, now) })
	}
	if w.hostile != nil {
		looks = append(looks, func(now time.Time) { w.hostile.meter.look(w, now) })
		w.watchers.Go(func() { w.tenant(ctx) })
	}
	for _, look := range looks {
		w.watchers.Go(func() {
			tick := time.NewTicker(200 * time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case now := <-tick.C:
					look(now)
				}
			}
		})
	}
}

// awake reports whether a plugin and who publishes its devices run, and none is frozen.
func (w *world) awake() bool {
	first, second := w.plugin.Running(), w.second.Running()
	return (first || second) && first == awake(w.plugin) && second == awake(w.second) && awake(w.publisher())
}

// disturbed reports whether there are reasons for which devices are rightly out of service.
func (w *world) disturbed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.suspensions {
		if time.Now().Before(s.until) {
			return true
		}
	}
	m := readMood()
	return len(w.holds) > 0 || m.Free || m.Refused
}

// shakes reports whether something is at work that puts devices out of service for a while.
func (w *world) shakes() bool { return readMood().Flaps || w.openers != nil && !awake(w.openers) }

// publisher is the process that sets the resource's number on the Node.
func (w *world) publisher() *cluster.Process {
	if w.devmgrd == nil {
		return w.Kubelet
	}
	return w.devmgrd
}

func (w *world) stop() error {
	if w.watching != nil {
		w.watching()
		w.watchers.Wait()
	}
	var err error
	all := []*cluster.Process{w.plugin, w.second, w.mute, w.long, w.attacker, w.openers}
	if w.hostile != nil {
		all = append(all, w.hostile.user)
	}
	for _, p := range all {
		if p != nil {
			err = errors.Join(err, p.Kill())
		}
	}
	for _, f := range w.hardware {
		err = errors.Join(err, f.Close())
	}
	if w.node != nil {
		return errors.Join(err, w.node.Stop())
	}
	if w.Cluster != nil {
		return errors.Join(err, w.Cluster.Stop())
	}
	return err
}

// tell notes a line of the sequence's story.
func (w *world) tell(format string, args ...any) {
	line := fmt.Sprintf("%8.2fs  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.story = append(w.story, line)
	if w.options.verbose {
		fmt.Println(line)
	}
}

// say notes that something is wrong.
func (w *world) say(kind, what string) {
	if what == context.Canceled.Error() {
		return // interrupted
	}
	w.mu.Lock()
	w.now[kind]++
	w.wrongs[kind]++
	w.mu.Unlock()
	w.tell("WRONG: %s: %s", kind, what)
}

func (w *world) forget(name string) {
	w.pods = slices.DeleteFunc(w.pods, func(n string) bool { return n == name })
}

func (w *world) shows(ctx context.Context, want int64) (bool, string) {
	v := apiView{cluster: w.Cluster}
	got, _, err := v.shown(ctx)
	if err != nil {
		return false, err.Error()
	}
	return got == want, fmt.Sprintf("the Node shows %d, want %d", got, want)
}

// eventually waits for a condition, and returns what it has said last if it does not come.
func (w *world) eventually(ctx context.Context, limit time.Duration, condition func() (bool, string)) error {
	end := time.Now().Add(limit)
	return w.until(ctx, &end, condition)
}

// until waits for a condition like eventually. The condition may move the end.
func (w *world) until(ctx context.Context, end *time.Time, condition func() (bool, string)) error {
	began := time.Now()
	for {
		ok, why := condition()
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(*end):
			return fmt.Errorf("after %s: %s", time.Since(began).Round(time.Second), why)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
