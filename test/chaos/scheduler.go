package main

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// passedOverTime is how long kube-scheduler must have passed over a pod before it is restarted.
const passedOverTime = 20 * time.Second

// scheduled waits for a condition as inService does. A pod may be left pending by kube-scheduler 1.36 and 1.37 alone: the scheduler makes a
// claim for a pod that requests the resource, and if that pod is deleted meanwhile, the garbage collector removes the claim before the
// scheduler has noticed it. The scheduler waits for it for two minutes (AssumeExtendedResourceTimeoutDefaultSeconds), counts its devices as
// allocated as long, and does not look again at pods that wait for them then. So if the API server has shown enough devices for a pending pod
// for some time, the scheduler is restarted, which forgets, and the condition has the same time once more.
func (w *world) scheduled(ctx context.Context, limit time.Duration, condition func() (bool, string)) error {
	pod, since, looked := "", time.Time{}, time.Time{}
	err := w.inService(ctx, limit, func() (bool, string) {
		if w.claims != nil && time.Since(looked) > time.Second {
			looked = time.Now()
			is := w.passedOver(ctx)
			if is != pod {
				pod, since = is, looked
			}
		}
		return condition()
	})
	if err == nil || ctx.Err() != nil || pod == "" || time.Since(since) < passedOverTime {
		return err
	}
	w.tell("for %s kube-scheduler has left pod %s pending, for which there are devices that no claim has: restart kube-scheduler", time.Since(since).Round(time.Second), pod)
	w.forgot++
	if err := w.keeper.kill(w.Scheduler, true, false); err != nil {
		return err
	}
	return w.inService(ctx, limit, condition)
}

// passedOver returns the name of a pod that is pending although the slices show enough devices for it that have no taint and are in no claim. It is
// empty if there is none, or if a pod that has been scheduled does not run.
func (w *world) passedOver(ctx context.Context) string {
	pods, err := w.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	claims, err := w.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return ""
	}
	devices, err := w.sliced(ctx)
	if err != nil || slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.Spec.NodeName != "" && !ready(&p) }) {
		return ""
	}
	free := free(devices, claims.Items)
	i := slices.IndexFunc(pods.Items, func(p corev1.Pod) bool {
		n := wants(&p)
		return p.Spec.NodeName == "" && p.DeletionTimestamp == nil && n > 0 && n <= free && w.mayBind(&p, claims.Items)
	})
	if i < 0 {
		return ""
	}
	return pods.Items[i].Name
}

// free returns how many devices of slices have no taint, and are in no claim.
func free(devices map[string][]string, claims []resourceapi.ResourceClaim) (n int64) {
	allocated := map[string]bool{}
	for _, c := range claims {
		if c.Status.Allocation == nil {
			continue
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == driverName {
				allocated[r.Device] = true
			}
		}
	}
	for name, taints := range devices {
		if len(taints) == 0 && !allocated[name] {
			n++
		}
	}
	return n
}
