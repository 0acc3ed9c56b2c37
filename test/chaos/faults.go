package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// faults are all that may happen. What has to be repaired afterwards is, by world.repair, whatever happened.
func faults(w *world) []fault {
	all := []fault{
		{14, createPods}, // the first
		{5, deletePod(time.Second)},
		{2, deletePod(0)},
		{4, killContainer},
		{3, moody("the plugin errs", func(m *Mood, _ *rand.Rand) { m.Errs = true })},
		{2, moody("the plugin is slow", func(m *Mood, dice *rand.Rand) { m.Slow = time.Duration(dice.IntN(3000)) * time.Millisecond })},
		{3, moody("devices become unhealthy", func(m *Mood, dice *rand.Rand) { m.Unhealthy = 1 + dice.IntN(deviceCount) })},
		{2, moody("devices vanish", func(m *Mood, dice *rand.Rand) { m.Gone = 1 + dice.IntN(deviceCount) })},
		{2, moody("the plugin stops registering", func(m *Mood, _ *rand.Rand) { m.Loner = true })},
		{4, moody("the plugin is well", func(m *Mood, _ *rand.Rand) {
			*m = Mood{Names: m.Names, Share: m.Share, Refused: m.Refused, Free: m.Free}
		})},
		{3, moody("a device is refused", func(m *Mood, dice *rand.Rand) { m.Bad, m.Refused = 1+dice.IntN(deviceCount), true })},
		{3, moody("a device flaps", func(m *Mood, _ *rand.Rand) { m.Flaps = true })},
		{2, rename},
		{2, hang},
		{1, unkillable},
		{2, freezeShim},
		{3, interrupt(w.Runtime)},
		{5, restart(w.plugin)},
		{2, freeze(w.plugin)},
		{4, restart(w.Kubelet)},
		{2, freeze(w.Kubelet)},
		{3, restart(w.Runtime)},
		{1, freeze(w.Runtime)},
		{3, restart(w.APIServer)},
		{1, cutPower},
		{1, pause},
	}
	if w.devmgrd != nil {
		all = append(all, fault{8, restart(w.devmgrd)}, fault{4, freeze(w.devmgrd)}, fault{2, fillDisk}, fault{3, interrupt(w.devmgrd)}, fault{8, failSyncs})
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
		what += fmt.Sprintf(" %s (%d devices%s)", name, wants, w.how(name))
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

// restart ends a process, politely or not, and lets it be away for a moment or until all is repaired.
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
	all := []*cluster.Process{w.Kubelet, w.Runtime, w.plugin}
	if w.devmgrd != nil {
		all = append(all, w.devmgrd)
	}
	for _, p := range all {
		if err := w.keeper.kill(p, true, true); err != nil {
			return "cut the power", err
		}
	}
	for _, p := range []*cluster.Process{w.second, w.mute} {
		if err := w.keeper.kill(p, true, true); err != nil {
			return "cut the power", err
		}
	}
	w.boots.Add(1)
	close(w.unplugged)
	w.unplugged = make(chan struct{})
	err := w.PowerOff(ctx)
	w.boots.Add(1)
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
			case <-w.repairing:
			}
			_ = p.Signal(syscall.SIGCONT) // it may have ended meanwhile
		})
		return fmt.Sprintf("freeze %s for %s", p.Name, d), nil
	}
}

// rename has the plugin list the same hardware under other IDs, with or without a restart.
func rename(_ context.Context, w *world, dice *rand.Rand) (string, error) {
	w.renamed++
	m := readMood()
	m.Names = w.renamed
	err := m.write()
	if dice.IntN(2) == 0 {
		return "the plugin renames its devices, and restarts", errors.Join(err, w.keeper.kill(w.plugin, true, false))
	}
	return "the plugin renames its devices", err
}

// hang has containers get a mount with their devices, of a file system that does not answer.
func hang(_ context.Context, w *world, _ *rand.Rand) (string, error) {
	const what = "a file system hangs that the plugin's mounts are on"
	if w.hung != nil {
		return what + ", already", nil
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		return what, err
	}
	if err := unix.Mount("hung", hostMount, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", f.Fd())); err != nil {
		return what, errors.Join(err, f.Close())
	}
	w.hung = f
	m := readMood()
	m.Share = true
	return what, m.write()
}

// unhang ends what hang has begun.
func (w *world) unhang() error {
	if w.hung == nil {
		return nil
	}
	err := errors.Join(w.hung.Close(), unix.Unmount(hostMount, unix.MNT_DETACH))
	w.hung = nil
	return err
}

// unkillable deletes a pod by force whose processes cannot be killed for up to 40 s.
func unkillable(ctx context.Context, w *world, _ *rand.Rand) (string, error) {
	name, err := w.create(ctx, 1)
	if err != nil {
		return "create " + name + " (1 device)", err
	}
	what, err := w.forced(ctx, name, 40*time.Second)
	return fmt.Sprintf("create %s (1 device)%s", name, what), err
}

// forced waits for a pod to start, freezes its processes for d or until all is repaired, and deletes it by force. The kubelet would end its
// containers within two seconds, whatever the pod says.
func (w *world) forced(ctx context.Context, pod string, d time.Duration) (what string, err error) {
	w.forget(pod)
	pid := 0
	err = w.eventually(ctx, 3*time.Second, func() (bool, string) {
		for _, h := range holders() {
			if h.pod == pod {
				pid = h.pid
			}
		}
		return pid != 0, "it has not started"
	})
	if err == nil {
		what, err = fmt.Sprintf(", freeze it for %s", d), w.freezePod(pid, d)
	}
	now := int64(0)
	deleted := w.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &now})
	return what + ", and delete it by force", errors.Join(err, deleted)
}

// freezePod keeps a container's process from running and from being killed for d, until all is repaired, or until the power is cut.
func (w *world) freezePod(pid int, d time.Duration) error {
	thaw, err := node.Freeze(pid)
	if err != nil {
		return err
	}
	unplugged := w.unplugged
	w.later.Go(func() {
		w.lasts(d, unplugged)
		if err := thaw(); err != nil {
			w.say(stuck, err.Error())
		}
	})
	return nil
}

// lasts waits for d, until all is repaired, or until the power is cut, which closes unplugged.
func (w *world) lasts(d time.Duration, unplugged <-chan struct{}) {
	select {
	case <-time.After(d):
	case <-unplugged:
	case <-w.repairing:
	}
}

// freezeShim stops the process between containerd and a container, and restarts containerd: its list says that nothing is
// known of the container.
func freezeShim(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	all := holders()
	at, d := dice.IntN(1000), time.Duration(3000+dice.IntN(5000))*time.Millisecond
	if len(all) == 0 {
		return "there is no shim to freeze", nil
	}
	h := all[at%len(all)]
	fields := stat(h.pid)
	if len(fields) < 2 {
		return "the container whose shim should be frozen has ended", nil
	}
	shim, err := strconv.Atoi(fields[1])
	if err != nil || shim <= 1 {
		return "freeze a shim", fmt.Errorf("the parent of %d is %q", h.pid, fields[1])
	}
	started := startOf(shim)
	if err := syscall.Kill(shim, syscall.SIGSTOP); err != nil {
		return "freeze a shim", err
	}
	w.later.Go(func() {
		select {
		case <-time.After(d):
		case <-w.repairing:
		}
		if startOf(shim) == started {
			_ = syscall.Kill(shim, syscall.SIGCONT)
		}
	})
	return fmt.Sprintf("freeze the shim of %s for %s, and kill containerd", h.pod, d), w.keeper.kill(w.Runtime, true, false)
}

// interrupt restarts a process in the middle of the creation of some pods.
func interrupt(p *cluster.Process) func(context.Context, *world, *rand.Rand) (string, error) {
	return func(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
		hard, d := dice.IntN(2) == 0, time.Duration(dice.IntN(1200))*time.Millisecond
		what := fmt.Sprintf("restart %s %s after the creation of", p.Name, d)
		for range 2 {
			name, err := w.create(ctx, 1)
			if what += " " + name + w.how(name); err != nil {
				return what, err
			}
		}
		select {
		case <-time.After(d):
		case <-ctx.Done():
		}
		return what, w.keeper.kill(p, hard, false)
	}
}

// fillDisk leaves no room for devmgrd's state file.
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

// failSyncs has some commits fail, at the data's sync, when they have not happened, or at the meta page's, when they have.
func failSyncs(_ context.Context, w *world, dice *rand.Rand) (string, error) {
	meta, syncs := dice.IntN(2) == 0, 1+dice.IntN(2)
	w.gate.breaks(meta, syncs)
	return fmt.Sprintf("%d syncs of the %s fail", syncs, map[bool]string{true: "meta page", false: "data"}[meta]), nil
}

func pause(context.Context, *world, *rand.Rand) (string, error) { return "nothing", nil }

// create creates a pod that sleeps, or does something else.
func (w *world) create(ctx context.Context, wants int, args ...string) (string, error) {
	w.named++
	name := fmt.Sprintf("pod-%d", w.named)
	if args == nil {
		args = []string{"sleep"}
	}
	pod := node.Pod(name, resourceName, wants, args...)
	if args[0] != "sleep" {
		patience := int64(60)
		pod.Spec.TerminationGracePeriodSeconds = &patience
	}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	shape := w.draws(wants)
	w.asked[name] = shape
	shape.shapes(pod)
	if err := w.asks(ctx, pod, shape.claimed(), shape.claim); err != nil {
		return name, err
	}
	w.mu.Lock()
	w.created[name] = time.Now()
	w.mu.Unlock()
	if _, err := w.Client().CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return name, err
	}
	w.pods = append(w.pods, name)
	return name, nil
}
