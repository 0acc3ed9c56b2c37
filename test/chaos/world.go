package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
)

var kinds = []string{failed, bare, twoHands, changed, number, promised, taken, idle, early, late, waits, stuck, leak, claimed, unsliced, twice, unclaimed, crash}

// A world is the node with all that can be broken on it. Its fields are the player's, but for what the mutex guards.
type world struct {
	*cluster.Cluster
	options  options
	node     *node.Node       // nil: without devmgrd
	devmgrd  *cluster.Process // the same
	openers  *cluster.Process // the same: devmgrd openers
	gate     *gate            // the same
	plugin   *cluster.Process
	attacker *cluster.Process // nil: none
	keeper   *keeper
	began    time.Time

	pods      []string // that should be there
	named     int
	later     sync.WaitGroup // what ends on its own, or when all is repaired
	repairing chan struct{}  // closed when it is
	cut       bool           // the API server has been away
	renamed   int            // how often the plugin has renamed its devices
	boots     atomic.Int64   // how often the power has been cut and has come back: odd while it is cut
	hung      *os.File       // keeps the plugin's mounts hanging
	hardware  []*os.File     // the plugin's devices
	unplugged chan struct{}  // closed when the power is cut
	settings  string         // of devmgrd
	looks     bool           // devmgrd looks for other processes
	offered   bool           // devmgrd offers the resource through DRA
	plan      plan           // of the sequence
	kinds     *rand.Rand     // how the next pods ask for devices; nil: they request the resource
	asked     map[string]kind
	claimed   map[int][]string // claims of pods' authors, by the number of devices
	through   int              // sequences through DRA
	forgot    int              // how often kube-scheduler had to be restarted, see scheduled
	claims    *claimView

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
		created: map[string]time.Time{}, unplugged: make(chan struct{}), asked: map[string]kind{}, claimed: map[int][]string{}, uses: map[string]string{},
	}
	shape := cluster.Options{Dir: o.logs, KubeletConfig: "crashLoopBackOff: {maxContainerRestartPeriod: 1s}\n"}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(os.MkdirAll(hostLibs, 0o755), Mood{}.write()); err != nil {
		return nil, err
	}
	if w.hardware, err = makeDevices(); err != nil {
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
	w.plugin = cluster.NewProcess("plugin", filepath.Join(w.LogDir(), "plugin.log"), []string{self, "plugin", sockets}, nil)
	w.keeper = &keeper{say: w.say}
	for _, p := range []*cluster.Process{w.APIServer, w.Runtime, w.Kubelet, w.Scheduler, w.ControllerManager} {
		w.keeper.keep(p, true) // a kubelet ends if it finds no runtime, and so on
	}
	w.keeper.keep(w.plugin, false)
	if w.devmgrd != nil {
		w.keeper.keep(w.devmgrd, false)
		w.keeper.keep(w.openers, false)
	}
	if err := w.plugin.Start(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	if o.attacker {
		if err := w.addAttacker(ctx, self); err != nil {
			return nil, errors.Join(err, w.stop())
		}
	}
	w.watch()
	if err := w.eventually(ctx, 30*time.Second, func() (bool, string) { return w.shows(ctx, deviceCount) }); err != nil {
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
	if w.gate, err = newGate(gateSocket, stateFile); err != nil {
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
	return errors.Join(w.openers.Start(ctx), n.FailClosed(ctx), w.addClaims(ctx))
}

// watch starts those who look whether all is right, and the keeper.
func (w *world) watch() {
	ctx, cancel := context.WithCancel(context.Background())
	w.watching = cancel
	w.watchers.Go(func() { w.keeper.Run(ctx) })
	t := newTruth(w)
	v := &apiView{cluster: w.Cluster, say: w.say, publish: w.publisher(), awake: w.awake, failed: map[string]bool{}}
	looks := []func(time.Time){t.look, func(now time.Time) { v.look(ctx, now) }}
	if w.claims != nil {
		looks = append(looks, func(now time.Time) { w.claims.look(ctx, now) })
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

// awake reports whether the plugin and who publishes its devices run, and are not frozen.
func (w *world) awake() bool {
	return awake(w.plugin) && awake(w.publisher())
}

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
	for _, p := range []*cluster.Process{w.plugin, w.attacker, w.openers} {
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

// play plays all sequences and returns the exit status.
func (w *world) play(ctx context.Context) int {
	against := "devmgrd"
	if w.options.kubelet {
		against = "the kubelet's device manager"
	}
	fmt.Printf("%d sequences of faults against %s, seed %d\n", w.options.sequences, against, w.options.seed)
	steps, played := 0, 0
	for i := range w.options.sequences {
		if ctx.Err() != nil {
			break
		}
		seed := w.options.seed + uint64(i)
		n, took := w.sequence(ctx, seed)
		if ctx.Err() != nil {
			break
		}
		steps, played = steps+n, played+1
		if w.plan.claims {
			w.through++
		}
		w.mu.Lock()
		wrong, story := w.now, w.story
		w.now, w.story = map[string]int{}, nil
		w.mu.Unlock()
		if len(wrong) == 0 {
			fmt.Printf("seed %d: %d steps%s, %.1f s: all is well\n", seed, n, w.door(), took.Seconds())
			continue
		}
		fmt.Printf("seed %d: %d steps%s, %.1f s: WRONG %v\n", seed, n, w.door(), took.Seconds(), wrong)
		if !w.options.verbose {
			fmt.Println(strings.Join(story, "\n"))
		}
		fmt.Printf("  again: make chaos SEED=%d%s\n", seed, w.side())
		if w.node != nil {
			fmt.Printf("  devmgrd said last:\n%s\n", w.node.Tail())
		}
	}
	fmt.Printf("\n%d sequences, %d of them through DRA, %d steps, %d pods, %s, against %s:\n", played, w.through, steps, w.named, time.Since(w.began).Round(time.Second), against)
	status := 0
	for _, kind := range kinds {
		fmt.Printf("%6d %s\n", w.wrongs[kind], kind)
		status = max(status, min(w.wrongs[kind], 1))
	}
	if !w.options.kubelet {
		fmt.Printf("%6d suspensions of devices\n", w.announced)
		fmt.Printf("%6d pods that kube-scheduler passed over until it was restarted\n", w.forgot)
	}
	fmt.Printf("%6d processes that kept a device open\n", w.kept)
	if w.options.attacker {
		n := readAttacks()
		fmt.Printf("%6d attacks\n", n)
		if n < 10*played {
			fmt.Println("the attacker has hardly attacked: the run says nothing of it")
			status = 1
		}
	}
	if ctx.Err() != nil {
		return 130
	}
	if w.options.kubelet {
		return 0 // it is there to be compared with
	}
	return status
}

// door returns how the latest sequence had the resource offered, where that was through DRA.
func (w *world) door() string {
	switch {
	case !w.plan.claims:
		return ""
	case len(w.plan.moves) > 0:
		return " through DRA in part"
	}
	return " through DRA"
}

// side returns what make has to be told besides the seed.
func (w *world) side() string {
	switch {
	case w.options.kubelet:
		return " KUBELET=1"
	case w.options.attacker:
		return " ATTACKER=1"
	}
	return ""
}

// sequence plays one sequence, and repairs everything.
func (w *world) sequence(ctx context.Context, seed uint64) (steps int, took time.Duration) {
	began := time.Now()
	dice := rand.New(rand.NewPCG(seed, 0))
	w.repairing = make(chan struct{})
	all := faults(w)
	// The faults that have dice of their own leave the others of a seed as they were.
	more := rand.New(rand.NewPCG(seed, 2))
	opened, flapping := more.IntN(2) == 0, more.IntN(4) == 0
	w.plan = newPlan(seed, w.devmgrd == nil)
	if w.devmgrd != nil {
		if err := w.configure(ctx, opened); err != nil {
			w.say(stuck, err.Error())
		}
	}
	held := w.kept
	steps = 5 + dice.IntN(8)
	for i := range steps {
		// The dice of a step are its own: what it does does not depend on what the one before has met.
		own := rand.New(rand.NewPCG(dice.Uint64(), 0))
		w.kinds = w.plan.step()
		f, rest := draw(all, own), time.Duration(own.IntN(1500))*time.Millisecond
		if i == 0 {
			f = all[0] // there is something to lose
		}
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		what, err := f.do(try, w, own)
		cancel()
		if err != nil {
			what += " (" + short(err) + ")"
		}
		w.tell("%s", what)
		if opened && i > 0 {
			w.more(ctx, more)
		}
		if w.plan.claims && i > 0 {
			w.claimFault(ctx, i, w.plan.step())
		}
		select {
		case <-ctx.Done():
		case <-time.After(rest):
		}
	}
	if dice.IntN(10) == 0 { // long enough for a number to fall
		w.tell("nothing for 30 s")
		select {
		case <-ctx.Done():
		case <-time.After(30 * time.Second):
		}
	}
	if w.plan.claims && w.plan.wiped && ctx.Err() == nil {
		w.wiped(ctx)
	}
	w.repair(ctx)
	if flapping && w.devmgrd != nil && ctx.Err() == nil {
		w.flap(ctx, more)
	}
	w.settle(ctx, w.kept > held)
	return steps, time.Since(began)
}

// more plays faults of processes that keep devices open, and of those who look for them.
func (w *world) more(ctx context.Context, dice *rand.Rand) {
	own := rand.New(rand.NewPCG(dice.Uint64(), 0))
	do := keepOpen
	switch n := own.IntN(12); {
	case n == 0 && w.openers != nil:
		do = restart(w.openers)
	case n > 7:
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	what, err := do(ctx, w, own)
	if err != nil {
		what += " (" + short(err) + ")"
	}
	w.tell("%s", what)
}

func short(err error) string {
	text := err.Error()
	return text[:min(len(text), 80)]
}

// repair puts everything right again that faults may have broken.
func (w *world) repair(ctx context.Context) {
	w.tell("all is repaired")
	close(w.repairing)
	w.later.Wait()
	if w.gate != nil {
		if data, meta := w.gate.repair(); data+meta > 0 {
			w.tell("%d syncs of data and %d of a meta page have failed", data, meta)
		}
	}
	// The names stay: devices in use under former IDs would be others.
	was := readMood()
	if err := errors.Join(os.RemoveAll(ballast), w.unhang(), Mood{Names: was.Names, Refused: was.Refused}.write()); err != nil {
		w.say(stuck, err.Error())
	}
	for _, p := range []*cluster.Process{w.APIServer, w.Scheduler, w.ControllerManager, w.Runtime, w.Kubelet, w.plugin, w.devmgrd, w.openers} {
		if p != nil {
			w.keeper.up(p)
		}
	}
	if w.cut { // the control plane's own programs take up to a minute to find the API server again
		for _, p := range []*cluster.Process{w.Scheduler, w.ControllerManager} {
			if err := w.keeper.kill(p, true, false); err != nil {
				w.say(stuck, err.Error())
			}
		}
		w.cut = false
	}
	err := w.eventually(ctx, time.Minute, func() (bool, string) {
		look, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		n, err := w.Client().CoreV1().Nodes().Get(look, w.NodeName(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && time.Since(c.LastHeartbeatTime.Time) < 20*time.Second
		})
		return ready && (w.devmgrd == nil || w.devmgrd.Running()), "the node is not ready"
	})
	if err != nil {
		w.say(stuck, err.Error())
	}
}

// inService waits for a condition like eventually, and for suspensions to end if need be. A failure counts some seconds after it began.
func (w *world) inService(ctx context.Context, limit time.Duration, condition func() (bool, string)) error {
	var looked time.Time
	end := time.Now().Add(limit)
	return w.until(ctx, &end, func() (bool, string) {
		if w.devmgrd != nil && time.Since(looked) > 2*time.Second {
			looked = time.Now()
			if last := w.watchSuspensions(ctx); !last.IsZero() && end.Before(last.Add(limit)) {
				end = last.Add(limit)
			}
		}
		return condition()
	})
}

// settleLimit is how long pods may take to run, or to go, when all is well again. A kubelet that has lost the API server
// several times within two minutes asks for it again after up to a minute.
const settleLimit = 2 * time.Minute

// leakLimit is how long devices may stay with a pod that is gone. A kubelet that was killed between a container's creation and its
// start removes that container when it collects garbage, each minute.
const leakLimit = 100 * time.Second

// settle waits until what should run runs, ends it all, and looks whether everything can be had then.
func (w *world) settle(ctx context.Context, held bool) {
	if ctx.Err() != nil {
		return // interrupted: nothing is known
	}
	m := readMood()
	if w.kinds = w.plan.step(); !w.offered {
		w.kinds = nil // pods with claims would wait for slices
	}
	if err := w.scheduled(ctx, settleLimit, func() (bool, string) { return w.allRun(ctx) }); err != nil {
		w.say(stuck, err.Error())
		w.explain(ctx)
	}
	w.clear(ctx)
	if held {
		if err := w.inService(ctx, leakLimit, func() (bool, string) { return w.whole(ctx) }); err != nil {
			w.say(idle, err.Error())
		}
	}
	if m.Refused {
		// A pod that is gone may hold its devices for a while yet, see leakLimit. Then the others are not free.
		if err := w.scheduled(ctx, leakLimit, func() (bool, string) { return w.hasAll(ctx) }); err != nil {
			w.say(leak, err.Error())
			w.explain(ctx)
		}
		w.clear(ctx)
		if !w.offered { // the scheduler does not know that a device is refused
			w.passOver(ctx, m)
			w.clear(ctx)
		}
	}
	if err := w.inService(ctx, time.Minute, func() (bool, string) { return w.whole(ctx) }); err != nil {
		w.say(w.lacks(), err.Error())
	}
	if err := w.scheduled(ctx, leakLimit, func() (bool, string) { return w.hasAll(ctx) }); err != nil {
		w.say(leak, err.Error())
		w.explain(ctx)
	}
	w.clear(ctx)
	if err := w.inService(ctx, 20*time.Second, func() (bool, string) { return w.whole(ctx) }); err != nil {
		w.say(w.lacks(), err.Error())
	}
	if w.devmgrd != nil {
		w.uncordon(ctx, m.ids()...) // the next sequence begins without a record of failures
	}
}

// passOver has the first device refused, and looks whether a pod runs that wants one while the others are free.
func (w *world) passOver(ctx context.Context, m Mood) {
	m.Refused, m.Bad = false, 1
	err := m.write()
	name := ""
	if err == nil {
		name, err = w.create(ctx, 1)
	}
	if err == nil {
		err = w.eventually(ctx, 30*time.Second, func() (bool, string) {
			p, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			return ready(p) || failedForDevices(p), lament(p)
		})
	}
	if err != nil {
		w.say(waits, err.Error())
	}
	m.Bad = 0
	if err := m.write(); err != nil {
		w.say(stuck, err.Error())
	}
}

// inUseUnlisted reports whether a container has a device under an ID that the plugin lists no longer. Devices under new IDs
// may be withheld then (decision 0021), and pods wait for its end.
func inUseUnlisted() bool {
	listed := map[string]bool{}
	for _, d := range readMood().devices() {
		listed[d.ID] = true
	}
	for _, h := range holders() {
		if slices.ContainsFunc(h.has, func(id string) bool { return !listed[id] }) {
			return true
		}
	}
	return false
}

// allRun reports whether all pods that are bound to the node run, or wait for devices that are rightly withheld, and whether the scheduler
// has bound those for which there are devices.
func (w *world) allRun(ctx context.Context) (bool, string) {
	pods, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	free, counted := int64(deviceCount), map[string]bool{}
	for _, p := range pods.Items {
		if p.Spec.NodeName == "" || failedForDevices(&p) {
			continue
		}
		if claim := w.claimOf(p.Name); claim == "" || !counted[claim] {
			counted[claim] = true
			free -= wants(&p)
		}
		if p.DeletionTimestamp == nil && !ready(&p) && (wants(&p) == 0 || !inUseUnlisted() && !w.claims.unlisted(p.Name)) {
			return false, lament(&p)
		}
	}
	if w.claims == nil || inUseUnlisted() {
		return true, ""
	}
	claims, err := w.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err.Error()
	}
	for _, p := range pods.Items {
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && w.fits(&p, free, counted) && w.mayBind(&p, claims.Items) {
			return false, fmt.Sprintf("%d devices are free; %s", free, lament(&p))
		}
	}
	return true, ""
}

// explain notes what devmgrd says of pods that do not run.
func (w *world) explain(ctx context.Context) {
	pods, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil || w.node == nil {
		return
	}
	for _, p := range pods.Items {
		if !ready(&p) {
			out, _ := w.node.Command(ctx, "explain", p.Namespace+"/"+p.Name).CombinedOutput()
			w.tell("%s\n%s\nevents:\n%s", lament(&p), out, w.node.Events(ctx, p.Name))
		}
	}
	out, _ := w.node.Command(ctx, "devices", resourceName).CombinedOutput()
	devices, err := w.sliced(ctx)
	w.tell("devices:\n%s\nslices: %v %v", out, devices, err)
}

// hasAll reports whether one pod runs that has all devices. It makes that pod, and another one when it has failed.
func (w *world) hasAll(ctx context.Context) (bool, string) {
	if len(w.pods) == 0 {
		if _, err := w.create(ctx, deviceCount); err != nil {
			return false, err.Error()
		}
	}
	p, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(ctx, w.pods[0], metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	if failedForDevices(p) {
		w.forget(p.Name)
	}
	return ready(p), lament(p)
}

func ready(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// lament says how it stands with a pod that does not run.
func lament(p *corev1.Pod) string {
	text := fmt.Sprintf("pod %s is %s %s", p.Name, p.Status.Phase, p.Status.Reason)
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue && c.Message != "" {
			text += "; " + c.Message
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil {
			text += "; " + s.State.Waiting.Reason + ": " + s.State.Waiting.Message
		}
	}
	return text
}

// clear deletes all pods and waits until they are gone.
func (w *world) clear(ctx context.Context) {
	soon := int64(1)
	err := w.eventually(ctx, settleLimit, func() (bool, string) {
		pods, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for _, p := range pods.Items {
			if p.DeletionTimestamp != nil {
				continue
			}
			err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &soon})
			if err != nil && !apierrors.IsNotFound(err) {
				return false, err.Error()
			}
		}
		if left := holders(); len(pods.Items) == 0 && len(left) > 0 {
			return false, fmt.Sprintf("a container of %s runs on", left[0].pod)
		}
		return len(pods.Items) == 0, fmt.Sprintf("%d pods are still there", len(pods.Items))
	})
	if err != nil {
		w.say(stuck, err.Error())
	}
	w.pods = nil
	if w.node == nil {
		return
	}
	clear(w.claimed)
	if err := w.eventually(ctx, settleLimit, func() (bool, string) { return w.removeClaims(ctx) }); err != nil {
		w.say(unclaimed, err.Error())
	}
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
