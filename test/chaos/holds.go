package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A hold is a process outside of all pods that has opened a device while a pod had it, and keeps it open.
type hold struct {
	pid      int
	started  string
	pod      string
	hardware string
}

// has reports whether the process has the device open still.
func (h hold) has() bool { return startOf(h.pid) == h.started }

// openHolds returns the processes that have a device open.
func (w *world) openHolds() []hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.holds)
}

// keepOpen has a process open a device of a container. The container's pod is deleted, as a rule, and the process ends later. devmgrd may be
// killed meanwhile.
func keepOpen(ctx context.Context, w *world, dice *rand.Rand) (string, error) {
	at, which, d := dice.IntN(1000), dice.IntN(1000), time.Duration(1000+dice.IntN(15000))*time.Millisecond
	deleted, forced, killed := dice.IntN(4) > 0, dice.IntN(2) == 0, dice.IntN(2) == 0
	withDevices := func() []holder { return slices.DeleteFunc(holders(), func(h holder) bool { return len(h.has) == 0 }) }
	all := withDevices()
	if len(all) == 0 {
		name, err := w.create(ctx, 1)
		if err == nil {
			err = w.eventually(ctx, 3*time.Second, func() (bool, string) {
				all = withDevices()
				return len(all) > 0, "there is no device to keep open"
			})
		}
		if err != nil {
			return "create " + name + " (1 device) and keep its device open", err
		}
	}
	h := all[at%len(all)]
	one := hold{pod: h.pod, hardware: hardware(h.has[which%len(h.has)])}
	what := fmt.Sprintf("a process opens device %s of %s for %s", one.hardware, h.pod, d)
	command := exec.Command("bash", "-c", `exec 3<"$0"; echo open; exec sleep infinity`, hostNode(one.hardware))
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := command.StdoutPipe()
	if err != nil {
		return what, err
	}
	if err := command.Start(); err != nil {
		return what, err
	}
	end := func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}
	text := make([]byte, len("open"))
	if _, err := out.Read(text); err != nil || string(text) != "open" {
		end()
		return what, fmt.Errorf("it has not: %q, %v", text, err)
	}
	one.pid, one.started = command.Process.Pid, startOf(command.Process.Pid)
	if !h.alive() {
		end()
		return what + ", too late", nil
	}
	w.mu.Lock()
	w.holds = append(w.holds, one)
	w.kept++
	w.mu.Unlock()
	unplugged := w.unplugged
	w.later.Go(func() {
		w.lasts(d, unplugged)
		end()
		w.mu.Lock()
		w.holds = slices.DeleteFunc(w.holds, func(other hold) bool { return other == one })
		w.mu.Unlock()
	})
	if deleted && slices.Contains(w.pods, h.pod) {
		seconds := int64(1)
		what += "; delete " + h.pod
		if forced {
			seconds = 0
			what += " by force"
		}
		err = w.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, h.pod, metav1.DeleteOptions{GracePeriodSeconds: &seconds})
		if err == nil {
			w.forget(h.pod)
		}
	}
	if killed && w.devmgrd != nil {
		what += "; kill devmgrd"
		err = errors.Join(err, w.keeper.kill(w.devmgrd, true, false))
	}
	return what, err
}
