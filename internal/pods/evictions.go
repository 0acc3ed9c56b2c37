package pods

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	firstEvictionPause = time.Second
	lastEvictionPause  = time.Minute
	evictionTimeout    = 10 * time.Second // of one call
	maxEvictions       = 1024             // in progress; further ones are dropped, and requested again if their cause lasts
)

// Evictions evicts pods through the API server's eviction API, so that disruption budgets apply. It retries a refused
// eviction, such as one against a budget, until the pod is gone or the cause has ended.
type Evictions struct {
	client kube.Client
	log    *slog.Logger
	wake   chan struct{} // size one

	mu   locks.Mutex[locks.Leaf] // guards what follows; held for look-ups only
	pods map[device.PodUID]*eviction
}

// An eviction is one pod to evict.
type eviction struct {
	pod     device.Pod
	why     string
	still   func() bool // reports whether the cause lasts; never called under the lock
	pause   loops.Backoff
	due     time.Time // of the next try; Run's goroutine alone changes it
	refused bool      // the refusal has been logged
}

// NewEvictions returns Evictions; Run carries them out. With a nil client they are dropped.
func NewEvictions(client kube.Client, log *slog.Logger) *Evictions {
	return &Evictions{client: client, log: log, wake: make(chan struct{}, 1), pods: map[device.PodUID]*eviction{}}
}

// Evict evicts a pod unless the cause has ended: still is called before each try. Evict returns at once; another call for the
// same pod changes nothing. A pod without a name cannot be evicted.
func (e *Evictions) Evict(pod device.Pod, why string, still func() bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.client == nil || pod.Name == "" || e.pods[pod.UID] != nil || len(e.pods) >= maxEvictions {
		return
	}
	e.pods[pod.UID] = &eviction{pod: pod, why: why, still: still, pause: loops.Backoff{First: firstEvictionPause, Last: lastEvictionPause}}
	loops.Signal(e.wake)
}

// Run evicts until ctx ends, one pod at a time.
func (e *Evictions) Run(ctx context.Context) error {
	for {
		next := e.next()
		if next != nil && !next.due.After(time.Now()) {
			e.try(ctx, next)
			continue
		}
		var due <-chan time.Time
		if next != nil {
			due = loops.At(next.due)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-e.wake:
		case <-due:
		}
	}
}

// next returns the eviction that is due first; nil: there is none.
func (e *Evictions) next() (first *eviction) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, one := range e.pods {
		if first == nil || one.due.Before(first.due) {
			first = one
		}
	}
	return first
}

// try requests one pod's eviction once. The eviction is done when the pod, or the pod of this UID, is gone.
func (e *Evictions) try(ctx context.Context, one *eviction) {
	still := one.still()
	var err error
	if still {
		err = e.post(ctx, one.pod)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case !still:
		e.log.Info("pod not evicted: the reason is gone", "pod", one.pod.String(), "why", one.why)
		delete(e.pods, one.pod.UID)
	case err == nil:
		e.log.Warn("pod evicted", "pod", one.pod.String(), "why", one.why)
		delete(e.pods, one.pod.UID)
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// This includes static pods: the API has only their mirror pods, under other UIDs.
		e.log.Info("pod to evict is gone", "pod", one.pod.String(), "uid", one.pod.UID, "why", one.why)
		delete(e.pods, one.pod.UID)
	default:
		one.due = time.Now().Add(one.pause.Next())
		if !one.refused && ctx.Err() == nil {
			one.refused = true
			e.log.Warn("cannot evict pod; retrying", "pod", one.pod.String(), "why", one.why, "err", err)
		}
	}
}

func (e *Evictions) post(ctx context.Context, pod device.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	uid := types.UID(pod.UID)
	body, err := json.Marshal(policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}},
	})
	if err != nil {
		return err
	}
	return e.client.Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		MaxRetries(0).SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}
