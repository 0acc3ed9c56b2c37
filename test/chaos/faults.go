package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// A fault is one thing that may happen. It says what it has done.
type fault struct {
	weight int
	do     func(ctx context.Context, w *world, dice *rand.Rand) (what string, err error)
}

// faults are all that may happen. What has to be mended afterwards is, by world.mend, whatever happened.
func faults(w *world) []fault {
	all := []fault{
		{14, createPods}, // the first
		{5, deletePod(time.Second)},
		{2, deletePod(0)},
		{4, killContainer},
		{3, moody("the plugin errs", func(m *Mood, _ *rand.Rand) { m.Errs = true })},
		{2, moody("the plugin is slow", func(m *Mood, dice *rand.Rand) { m.Slow = time.Duration(dice.IntN(3000)) * time.Millisecond })},
		{3, moody("devices get sick", func(m *Mood, dice *rand.Rand) { m.Sick = 1 + dice.IntN(deviceCount) })},
		{2, moody("devices vanish", func(m *Mood, dice *rand.Rand) { m.Gone = 1 + dice.IntN(deviceCount) })},
		{2, moody("the plugin registers no more", func(m *Mood, _ *rand.Rand) { m.Loner = true })},
		{4, moody("the plugin is well", func(m *Mood, _ *rand.Rand) { *m = Mood{} })},
		{5, restart(w.plugin)},
		{2, freeze(w.plugin)},
		{4, restart(w.Kubelet)},
		{2, freeze(w.Kubelet)},
		{3, restart(w.Containerd)},
		{1, freeze(w.Containerd)},
		{3, restart(w.APIServer)},
		{1, cutPower},
		{1, pause},
	}
	if w.devmgrd != nil {
		all = append(all, fault{8, restart(w.devmgrd)}, fault{4, freeze(w.devmgrd)}, fault{2, fillDisk})
	}
	return all
}

// draw chooses one of the faults.
func draw(all []fault, dice *rand.Rand) fault {
	sum := 0
	for _, f := range all {
		sum += f.weight
	}
	at := dice.IntN(sum)
	for _, f := range all {
		if at -= f.weight; at < 0 {
			return f
		}
	}
	panic("there is no fault")
}

func createPods(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	what := "create"
	for range 1 + dice.IntN(3) {
		wants := dice.IntN(4) % 3 // 0 most often
		name, err := w.create(ctx, wants)
		if err != nil {
			return what, err
		}
		what += fmt.Sprintf(" %s (%d devices)", name, wants)
	}
	return what, nil
}

func deletePod(grace time.Duration) func(context.Context, *world, *rand.Rand) (string, error) {
	return func(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
		at := dice.IntN(1000)
		if len(w.pods) == 0 {
			return "there is no pod to delete", nil
		}
		name := w.pods[at%len(w.pods)]
		seconds := int64(grace / time.Second)
		err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &seconds})
		if err != nil {
			return "delete " + name, err
		}
		w.forget(name)
		if seconds == 0 {
			return "delete " + name + " by force", nil
		}
		return "delete " + name, nil
	}
}

func killContainer(_ context.Context, _ *world, dice *rand.Rand) (string, error) {
	all := holders()
	at := dice.IntN(1000)
	if len(all) == 0 {
		return "there is no container to kill", nil
	}
	h := all[at%len(all)]
	if err := syscall.Kill(h.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return "", err
	}
	return "kill a container of " + h.pod, nil
}

func moody(what string, change func(*Mood, *rand.Rand)) func(context.Context, *world, *rand.Rand) (string, error) {
	return func(_ context.Context, w *world, dice *rand.Rand) (string, error) {
		m := readMood()
		change(&m, dice)
		return fmt.Sprintf("%s: %+v", what, m), m.write()
	}
}

// restart ends a process, politely or not, and lets it be away for a moment or until all is mended.
func restart(p *cluster.Process) func(context.Context, *world, *rand.Rand) (string, error) {
	return func(_ context.Context, w *world, dice *rand.Rand) (string, error) {
		hard, away := dice.IntN(3) > 0, dice.IntN(3) == 0
		what := "stop "
		if hard {
			what = "kill "
		}
		if what += p.Name; away {
			what += ", and it stays away"
		}
		w.cut = w.cut || p == w.APIServer
		return what, w.keeper.kill(p, hard, away)
	}
}

// cutPower ends all that runs on the node, and lets it come back in any order.
func cutPower(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	all := []*cluster.Process{w.Kubelet, w.Containerd, w.plugin}
	if w.devmgrd != nil {
		all = append(all, w.devmgrd)
	}
	for _, p := range all {
		if err := w.keeper.kill(p, true, true); err != nil {
			return "cut the power", err
		}
	}
	err := w.PowerOff(ctx)
	for _, p := range all {
		if dice.IntN(3) > 0 {
			w.keeper.up(p)
		}
	}
	return "cut the power", err
}

// freeze stops a process, which goes on after a while.
func freeze(p *cluster.Process) func(context.Context, *world, *rand.Rand) (string, error) {
	return func(_ context.Context, w *world, dice *rand.Rand) (string, error) {
		d := time.Duration(200+dice.IntN(5000)) * time.Millisecond
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return p.Name + " does not run, and cannot be frozen", nil
		}
		w.later.Go(func() {
			select {
			case <-time.After(d):
			case <-w.mending:
			}
			_ = p.Signal(syscall.SIGCONT) // it may have ended meanwhile
		})
		return fmt.Sprintf("freeze %s for %s", p.Name, d), nil
	}
}

// fillDisk leaves no room for devmgrd's books.
func fillDisk(context.Context, *world, *rand.Rand) (string, error) {
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
			return "fill the disk", nil
		} else if err != nil {
			return "", err
		}
	}
}

const ballast = node.StateDir + "/ballast"

func pause(context.Context, *world, *rand.Rand) (string, error) { return "nothing", nil }

// create creates a pod that sleeps.
func (w *world) create(ctx context.Context, wants int) (string, error) {
	w.named++
	name := fmt.Sprintf("pod-%d", w.named)
	pod := node.Pod(name, resourceName, wants, "sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: podVariable, Value: name}, {Name: wantsVariable, Value: fmt.Sprint(wants)}}
	if _, err := w.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return name, err
	}
	w.pods = append(w.pods, name)
	return name, nil
}
