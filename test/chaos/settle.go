package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
	w.kinds, w.ways = w.plan.step(), w.trials.step()
	if !w.offered {
		w.kinds, w.ways = nil, nil // pods with claims would wait for slices
	}
	if m.Refused && w.devmgrd != nil {
		w.uncordon(ctx, m.ids()...) // the pause after several refusals is longer than a sequence
	}
	if err := w.scheduled(ctx, settleLimit, func() (bool, string) { return w.allRun(ctx) }); err != nil {
		w.say(stuck, err.Error())
		w.explain(ctx)
	}
	w.clear(ctx)
	if w.trials.long != nil {
		w.longRuns(ctx)
	}
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
	if err := w.inService(ctx, time.Minute, func() (bool, string) { return w.whole(ctx) }); err != nil {
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
		err = w.eventually(ctx, settleLimit, func() (bool, string) {
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
func inUseUnlisted() bool { return unlisted(holders()) }

func unlisted(all []holder) bool {
	listed := map[string]bool{longDevice: true}
	for _, d := range readMood().devices() {
		listed[d.ID] = true
	}
	return slices.ContainsFunc(all, func(h holder) bool {
		return slices.ContainsFunc(h.has, func(id string) bool { return !listed[id] })
	})
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
		free -= w.takes(&p, counted)
		if claim := w.claimOf(p.Name); claim != "" {
			counted[claim] = true
		}
		if w.lostClaim(&p) {
			w.unclaimed[p.Name] = true
			continue
		}
		if p.DeletionTimestamp == nil && !ready(&p) && !w.overbooked(pods.Items) && !mixes(&p) && (wants(&p) == 0 || !inUseUnlisted() && !w.claims.unlisted(p.Name)) {
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
		if p.Spec.NodeName == "" && p.DeletionTimestamp == nil && w.takes(&p, counted) <= free && w.mayBind(&p, claims.Items) {
			return false, fmt.Sprintf("%d devices are free; %s", free, lament(&p))
		}
	}
	return true, ""
}

// lostClaim reports whether the kubelet has lost a claim that several pods use. If the last of them ends while another one joins, and the driver
// answers NodeUnprepareResources late, a kubelet before 1.37 adds the pod that joins to the claim's record and drops that record after the answer
// (unprepareResources in pkg/kubelet/cm/dra/manager.go). It never prepares the claim again for that pod, which waits until it is deleted.
func (w *world) lostClaim(p *corev1.Pod) bool {
	return w.claimOf(p.Name) != "" && slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.State.Waiting != nil && strings.Contains(s.State.Waiting.Message, "unable to get claim info for ResourceClaim")
	})
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
