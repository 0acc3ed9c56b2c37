//go:build e2e

package debian

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// The load is a resource whose devices are all in use: by a pod that stays, and by one pod after the other in each lane.
const (
	loaded  = "vendor.example/load"
	lanes   = 3
	perPod  = 2
	devices = (lanes + 1) * perPod
)

// load has pods with devices come and go until the returned function is called, which returns when each lane has had two further pods. No container
// runs without its devices, no device is in two hands, the pod that stays keeps its container, and the Node always shows all devices.
func (u *user) load() (settle func()) {
	u.t.Helper()
	plugintest.Start(u.t, node.SocketDir, loaded, plugintest.Devices(devices)...)
	soon, cancel := context.WithTimeout(u.ctx, patience)
	defer cancel()
	u.must(u.WaitShown(soon, loaded, devices))
	stayed := u.watchShown(loaded, devices)
	l := &hands{holders: map[string]string{}}
	had, err := l.take(soon, u.Node, "keeper")
	u.must(err)
	before, err := u.WaitPhase(soon, "keeper", corev1.PodRunning)
	u.must(err)

	done := make(chan struct{})
	count := make([]int, lanes)
	var all errgroup.Group
	for lane := range lanes {
		all.Go(func() error {
			for further := 0; further < 2; count[lane]++ {
				select {
				case <-done:
					further++
				default:
				}
				name := fmt.Sprintf("load-%d-%d", lane, count[lane])
				ctx, cancel := context.WithTimeout(u.ctx, patience)
				defer cancel()
				if _, err := l.take(ctx, u.Node, name); err != nil {
					return err
				}
				l.drop(name)
				if err := u.Delete(ctx, name); err != nil {
					return err
				}
			}
			return nil
		})
	}
	began := time.Now()
	return func() {
		u.t.Helper()
		close(done)
		u.must(all.Wait())
		stayed()
		soon, cancel := context.WithTimeout(u.ctx, patience)
		defer cancel()
		after, err := u.WaitPhase(soon, "keeper", corev1.PodRunning)
		u.must(err)
		if was, is := before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID; was != is {
			u.t.Errorf("the container of the pod that stays was %s and is %s", was, is)
		}
		if out := u.types("devmgrd", "assignments", "default/keeper"); !strings.Contains(out, had[0]) || !strings.Contains(out, had[1]) {
			u.t.Errorf("the pod that stays had %q, and devmgrd says\n%s", had, out)
		}
		u.must(u.Delete(soon, "keeper"))
		u.t.Logf("%d pods with devices came and went in each lane within %s", count, time.Since(began).Round(100*time.Millisecond))
	}
}

// hands are the pods that have devices, by what their containers say.
type hands struct {
	mu      sync.Mutex
	holders map[string]string // pods by device
}

// take starts a pod, and returns the devices of its container.
func (h *hands) take(ctx context.Context, n *node.Node, name string) ([]string, error) {
	pod := node.Pod(name, loaded, perPod, "report", "--then-sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	if err := n.Create(ctx, pod); err != nil {
		return nil, err
	}
	if _, err := n.WaitPhase(ctx, name, corev1.PodRunning); err != nil {
		return nil, err
	}
	report, err := n.Report(ctx, name)
	if err != nil {
		return nil, err
	}
	ids := strings.Split(report.Env["DEVICES"], ",")
	if len(ids) != perPod {
		return nil, fmt.Errorf("the container of pod %s has the devices %q, want %d", name, ids, perPod)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		if other := h.holders[id]; other != "" {
			return nil, fmt.Errorf("pods %s and %s both have %s", other, name, id)
		}
		h.holders[id] = name
	}
	return ids, nil
}

// drop forgets a pod, before it ends: its devices are free at any moment after that.
func (h *hands) drop(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, pod := range h.holders {
		if pod == name {
			delete(h.holders, id)
		}
	}
}
