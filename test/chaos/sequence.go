package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

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
		fmt.Printf("%6d pods whose claim the kubelet has lost\n", len(w.unclaimed))
	}
	fmt.Printf("%6d processes that kept a device open\n", w.kept)
	if w.options.attacker {
		n := readAttacks()
		fmt.Printf("%6d attacks\n", n)
		if n < 10*played {
			fmt.Println("the attacker has hardly attacked: the run says nothing of it")
			status = 1
		}
		fmt.Printf("%6d pods of a tenant with made-up resources\n", w.hostile.pods.Load())
		if !w.hostile.meter.report() {
			fmt.Printf("that is more than %.0f ms for 99 of 100 hooks, %d MiB, or %d writes\n", 1000*hookLimit, memoryLimit>>20, writeLimit)
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
	case w.options.claims:
		return " CLAIMS=1"
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
	w.plan = newPlan(seed, w.devmgrd == nil, w.options.claims)
	w.trials, w.rivals = newTrials(seed, w.plan, w.devmgrd == nil), 0
	if w.devmgrd != nil {
		if err := errors.Join(w.setPolicy(ctx), w.configure(ctx, opened)); err != nil {
			w.say(stuck, err.Error())
		}
	}
	held := w.kept
	steps = 5 + dice.IntN(8)
	for i := range steps {
		// The dice of a step are its own: what it does does not depend on what the one before has met.
		own := rand.New(rand.NewPCG(dice.Uint64(), 0))
		w.kinds, w.ways = w.plan.step(), w.trials.step()
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
		if i > 0 {
			w.try(ctx)
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
	if err := errors.Join(os.RemoveAll(ballast), os.RemoveAll(networkMood), w.unhang(), Mood{Names: was.Names, Refused: was.Refused}.write()); err != nil {
		w.say(stuck, err.Error())
	}
	for _, p := range []*cluster.Process{w.APIServer, w.Scheduler, w.ControllerManager, w.Runtime, w.Kubelet, w.plugin, w.devmgrd, w.openers} {
		if p != nil {
			w.keeper.up(p)
		}
	}
	if err := w.eventually(ctx, settleLimit, func() (bool, string) { return w.plugin.Running(), "the plugin does not run" }); err != nil {
		w.say(stuck, err.Error())
	}
	for _, p := range []*cluster.Process{w.second, w.mute} {
		if err := w.keeper.kill(p, true, true); err != nil {
			w.say(stuck, err.Error())
		}
	}
	if w.surged && w.devmgrd == nil { // a kubelet whose newest plugin has ended does not go back to the first
		if err := w.keeper.kill(w.plugin, true, false); err != nil {
			w.say(stuck, err.Error())
		}
	}
	w.surged = false
	if w.blocked {
		if err := w.eventually(ctx, settleLimit, func() (bool, string) {
			err := w.unblock(ctx)
			return err == nil, fmt.Sprint(err)
		}); err != nil {
			w.say(stuck, err.Error())
		}
		w.blocked = false
		w.unwritable.Store(false)
	}
	if w.cut { // the control plane's own programs take up to a minute to find the API server again
		for _, p := range []*cluster.Process{w.Scheduler, w.ControllerManager} {
			if err := w.keeper.kill(p, true, false); err != nil {
				w.say(stuck, err.Error())
			}
		}
		w.cut = false
	}
	err := w.eventually(ctx, settleLimit, func() (bool, string) {
		look, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		n, err := w.Client().CoreV1().Nodes().Get(look, w.NodeName(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		beat, err := w.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(look, w.NodeName(), metav1.GetOptions{})
		if err != nil {
			return false, err.Error()
		}
		ready = ready && beat.Spec.RenewTime != nil && time.Since(beat.Spec.RenewTime.Time) < 20*time.Second // the condition may be of before the faults
		return ready && (w.devmgrd == nil || w.devmgrd.Running()), "the node is not ready"
	})
	if err != nil {
		w.say(stuck, err.Error())
	}
}
