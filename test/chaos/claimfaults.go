package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// claimFaults are the faults of sequences in which the resource is offered through DRA, besides the others.
func claimFaults(w *world) []fault {
	return []fault{
		{3, restart(w.Scheduler)},
		{2, freeze(w.Scheduler)},
		{3, restart(w.ControllerManager)},
		{1, freeze(w.ControllerManager)},
		{2, restart(w.Kubelet)},
		{2, removeSlices},
		{1, deleteClaims},
		{4, handOn},
		{5, awayWhilePrepared},
		{4, awayWhileUnprepared},
		{4, awayWhileStarted},
		{2, restartBoth},
	}
}

// claimFault plays one fault of DRA after a step, or moves the resource.
func (w *world) claimFault(ctx context.Context, step int, dice *rand.Rand) {
	w.kinds = w.plan.step()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if w.plan.moves[step] {
		if w.trials.blocks != nil && !w.offered {
			w.did(block(ctx, w, w.trials.blocks))
		}
		w.did(w.moved(dice))
		return
	}
	if dice.IntN(2) == 0 {
		return
	}
	w.did(draw(claimFaults(w), dice).do(ctx, w, dice))
}

// did notes a fault in the sequence's story.
func (w *world) did(what string, err error) {
	if err != nil {
		what += " (" + short(err) + ")"
	}
	w.tell("%s", what)
}

// removeSlices deletes the node's slices, as a kubelet does that starts.
func removeSlices(ctx context.Context, w *world, _ *rand.Rand) (string, error) {
	return "delete all slices", w.Client().ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.driver=" + driverName})
}

// deleteClaims deletes the claims of pods' authors. Those in use stay until their pods are gone.
func deleteClaims(ctx context.Context, w *world, _ *rand.Rand) (string, error) {
	_, left := w.removeClaims(ctx)
	return "delete all claims of pods' authors: " + left, nil
}

// handOn deletes a pod by force whose processes cannot be killed for some seconds, and creates another pod: the scheduler may choose the same
// devices for it.
func handOn(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	first, second, d := 1+dice.IntN(2), 1+dice.IntN(deviceCount), time.Duration(2+dice.IntN(6))*time.Second
	name, err := w.create(ctx, first)
	what := fmt.Sprintf("create %s (%d devices%s)", name, first, w.how(name))
	if err != nil {
		return what, err
	}
	how, err := w.forced(ctx, name, d)
	next, failure := w.create(ctx, second)
	return fmt.Sprintf("%s%s; create %s (%d devices%s)", what, how, next, second, w.how(next)), errors.Join(err, failure)
}

// awayWhilePrepared creates pods, and has devmgrd away while the kubelet prepares their claims.
func awayWhilePrepared(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	d, goes := time.Duration(dice.IntN(1200))*time.Millisecond, leaves(w, w.devmgrd, dice)
	what := "create"
	for range 1 + dice.IntN(2) {
		name, err := w.create(ctx, 1)
		if what += fmt.Sprintf(" %s (1 device%s)", name, w.how(name)); err != nil {
			return what, err
		}
	}
	return after(ctx, what, d, goes)
}

// awayWhileUnprepared deletes pods, and has devmgrd away while the kubelet unprepares their claims.
func awayWhileUnprepared(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	d, goes := time.Duration(dice.IntN(800))*time.Millisecond, leaves(w, w.devmgrd, dice)
	what := ""
	for range 1 + dice.IntN(2) {
		one, err := deletePod(time.Duration(dice.IntN(2))*time.Second)(ctx, w, dice)
		if what += one + "; "; err != nil {
			return what, err
		}
	}
	return after(ctx, what, d, goes)
}

// awayWhileStarted has devmgrd away while a container starts again: the kubelet has prepared the pod's claims before.
func awayWhileStarted(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	d, goes := time.Duration(dice.IntN(500))*time.Millisecond, leaves(w, w.devmgrd, dice)
	first, err := goes()
	if err != nil {
		return first, err
	}
	return after(ctx, first, d, func() (string, error) { return killContainer(ctx, w, dice) })
}

// after does something after a while.
func after(ctx context.Context, what string, d time.Duration, do func() (string, error)) (string, error) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	more, err := do()
	return fmt.Sprintf("%s; %s later: %s", what, d, more), err
}

// leaves draws how a process goes away: killed, stopped or frozen, for a moment or until all is repaired.
func leaves(w *world, p *cluster.Process, dice *rand.Rand) func() (string, error) {
	do, own := restart(p), rand.New(rand.NewPCG(dice.Uint64(), 0))
	if dice.IntN(3) == 0 {
		do = freeze(p)
	}
	return func() (string, error) { return do(context.Background(), w, own) }
}

// restartBoth kills devmgrd and the kubelet at once.
func restartBoth(_ context.Context, w *world, dice *rand.Rand) (string, error) {
	first, second := dice.IntN(4) == 0, dice.IntN(4) == 0
	return "kill devmgrd and the kubelet", errors.Join(w.keeper.kill(w.devmgrd, true, first), w.keeper.kill(w.Kubelet, true, second))
}

// wiped has devmgrd away for so long that the kubelet deletes the slices: 30 s.
func (w *world) wiped(ctx context.Context) {
	w.did("devmgrd is away for 35 s", w.keeper.kill(w.devmgrd, true, true))
	select {
	case <-ctx.Done():
	case <-time.After(35 * time.Second):
	}
}
