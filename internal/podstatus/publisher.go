package podstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// The writes of one pod: podWrites in one go, then one in podEvery. A kubelet writes a pod's status some five times until it runs.
	podWrites = 6
	podEvery  = 20 * time.Second
	// The writes of all pods of the node together, which start at once after a reboot.
	allWrites = 100
	allEvery  = 500 * time.Millisecond
	// lookPause is the least rest after a look at all pods, lookShare the rest as a multiple of the look's time, lastLook the longest.
	lookPause = 100 * time.Millisecond
	lookShare = 10
	lastLook  = 5 * time.Second
	// delivery is how long the result of a write may take through the watch.
	delivery     = time.Minute
	patchTimeout = 10 * time.Second
	firstRetry   = time.Second
	lastRetry    = time.Minute
)

// A View has the pods' devices.
type View interface {
	Snapshot() *device.Snapshot
	// Updated returns a channel that is closed when the Snapshot has changed since the call.
	Updated() <-chan struct{}
}

// Pods are this node's pods at the API server.
type Pods interface {
	// Check returns nil while Shown is up to date.
	Check() error
	Shown() map[device.PodUID]device.ShownPod
	// ShownChanged has a value when Shown has a new pod, or another state of one.
	ShownChanged() <-chan struct{}
}

// Config is what New needs. Every field is required.
type Config struct {
	Client  rest.Interface // core/v1
	View    View
	Pods    Pods
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// A Publisher keeps the conditions of this node's pods up to date.
type Publisher struct {
	cfg     Config
	patches *prometheus.CounterVec
	refused atomic.Bool // the API server has refused the last write
	// Run's goroutine alone has the rest.
	pods    map[device.PodUID]*record
	all     *rate.Limiter
	written bool    // a write has succeeded
	failed  *record // the last write has failed, of this pod; nil: it has succeeded
	retry   loops.Backoff
	until   time.Time // no pod whose last write has failed is written to before
}

// A record is what the Publisher remembers of one pod.
type record struct {
	past
	allocation *device.PodAllocation // that counts describes
	counts     string
	writes     *rate.Limiter
	tried      time.Time // the last attempt to write, or when the pod was seen first
	version    uint64    // of the object after the last write
	retry      loops.Backoff
	due        time.Time // after a failure: the next attempt; zero: the last write has succeeded
}

// New returns a Publisher; Run starts it.
func New(cfg Config) *Publisher {
	if cfg.Client == nil || cfg.View == nil || cfg.Pods == nil || cfg.Log == nil || cfg.Metrics == nil {
		panic("podstatus: every field of Config is required")
	}
	return &Publisher{
		cfg: cfg, patches: newMetrics(cfg.Metrics), pods: map[device.PodUID]*record{}, all: rate.NewLimiter(rate.Every(allEvery), allWrites),
		retry: loops.Backoff{First: firstRetry, Last: lastRetry},
	}
}

// Limits returns what is missing while the API server refuses the writes.
func (p *Publisher) Limits() []device.Limit {
	if !p.refused.Load() {
		return nil
	}
	return []device.Limit{{Release: "its rights at the API server", Text: "devmgrd cannot write the conditions " + device.DevicesAssigned + " and " + device.DevicesHealthy +
		" of pods: grant patch on pods/status (rbac.yaml), or set kubernetes.podConditions to false"}}
}

// Run publishes until ctx ends, which is not an error. The conditions stay as they are: a pod's devices do not end with devmgrd.
func (p *Publisher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		updated := p.cfg.View.Updated() // before anything is read, so that no later change is missed
		began := time.Now()
		next, due := p.next(began)
		rest := max(lookPause, min(lookShare*time.Since(began), lastLook))
		if next != nil {
			p.write(ctx, next)
			due = time.Now() // another pod may be next
		}
		loops.Sleep(ctx, rest)
		at := loops.At(due)
		select {
		case <-updated:
		case <-p.cfg.Pods.ShownChanged():
		case <-at:
		case <-ctx.Done():
		}
	}
	return nil
}

// A change is a write that is due.
type change struct {
	pod    device.ShownPod
	record *record
	write  []device.PodCondition
}

// next returns the pod that differs and was written to least recently, or else when one may differ; zero: after a change.
func (p *Publisher) next(now time.Time) (first *change, due time.Time) {
	if p.cfg.Pods.Check() != nil {
		return nil, now.Add(lastLook)
	}
	shown, seen := p.cfg.Pods.Shown(), map[device.PodUID]*record{}
	for _, pod := range p.cfg.View.Snapshot().Pods {
		is, known := shown[pod.Pod.UID]
		if !known || is.Pod != pod.Pod || is.Leaving || !pod.Active {
			continue
		}
		r := p.pods[pod.Pod.UID]
		if r == nil {
			r = &record{tried: now, writes: rate.NewLimiter(rate.Every(podEvery), podWrites), retry: loops.Backoff{First: firstRetry, Last: lastRetry}}
		}
		seen[pod.Pod.UID] = r
		if r.allocation != pod.PodAllocation {
			r.allocation, r.counts = pod.PodAllocation, countsOf(pod.Assignments)
		}
		r.look(&pod, now)
		if is.Version < r.version && now.Before(r.tried.Add(delivery)) {
			due = loops.Earliest(due, r.tried.Add(delivery)) // or the watch signals
			continue
		}
		write, at := judge(&pod, r.counts, is, r.past, now)
		if due = loops.Earliest(due, at); len(write) == 0 {
			continue
		}
		if at := p.earliest(r, now); now.Before(at) {
			due = loops.Earliest(due, at)
			continue
		}
		if first == nil || r.tried.Before(first.record.tried) {
			first = &change{is, r, write}
		}
	}
	p.pods = seen
	if at := available(p.all, now); first != nil && now.Before(at) {
		return nil, loops.Earliest(due, at)
	}
	return first, due
}

// earliest returns when a pod may be written to. While the API server fails, each pod is tried once, and then one of them now and then; a
// pod that it refuses alone does not delay the others.
func (p *Publisher) earliest(r *record, now time.Time) time.Time {
	at := available(r.writes, now)
	if !r.due.IsZero() {
		at = slices.MaxFunc([]time.Time{at, r.due, p.until}, time.Time.Compare)
	}
	return at
}

// available returns when a limiter lets the next write pass.
func available(l *rate.Limiter, now time.Time) time.Time {
	lacking := 1 - l.TokensAt(now)
	if lacking <= 0 {
		return now
	}
	return now.Add(time.Duration(lacking/float64(l.Limit())*float64(time.Second)) + time.Millisecond)
}

// write writes a pod's conditions.
func (p *Publisher) write(ctx context.Context, c *change) {
	r, now := c.record, time.Now()
	r.writes.AllowN(now, 1)
	p.all.AllowN(now, 1)
	version, err := p.patch(ctx, c)
	r.tried = time.Now()
	if err == nil {
		r.version, r.due = version, time.Time{}
		r.retry.Reset()
		p.retry.Reset()
		p.patches.WithLabelValues("ok").Inc()
		p.refused.Store(false)
		if p.failed != nil {
			p.cfg.Log.Info("pod conditions published again")
		}
		p.written, p.failed, p.until = true, nil, time.Time{}
		return
	}
	r.due = r.tried.Add(r.retry.Next())
	if apierrors.IsNotFound(err) || ctx.Err() != nil {
		return // the pod is gone, and the watch will say so
	}
	p.patches.WithLabelValues("error").Inc()
	if apierrors.IsInvalid(err) {
		return // another pod has its name, and a UID may not be changed; or a policy denies the write
	}
	if p.failed == nil {
		p.cfg.Log.Warn("cannot publish pod conditions", "pod", c.pod.Pod.String(), "err", err)
	}
	alone := p.written && (p.failed == nil || p.failed == r) // a policy may refuse this pod's, for instance
	p.refused.Store(apierrors.IsForbidden(err) && !alone)
	p.failed, p.until = r, r.tried.Add(p.retry.Next())
}

// patch sends the patch, and returns the version of the pod after it.
func (p *Publisher) patch(ctx context.Context, c *change) (uint64, error) {
	list := make([]map[string]any, 0, len(c.write))
	for _, w := range c.write { // an empty message is named too: a merge keeps what a patch does not name
		list = append(list, map[string]any{"type": w.Type, "status": w.Status, "reason": w.Reason, "message": w.Message, "lastTransitionTime": metav1.NewTime(w.Since)})
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": c.pod.Object}, "status": map[string]any{"conditions": list}})
	if err != nil {
		return 0, fmt.Errorf("writing a patch: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	var pod corev1.Pod
	err = p.cfg.Client.Patch(types.StrategicMergePatchType).Namespace(c.pod.Pod.Namespace).Resource("pods").Name(c.pod.Pod.Name).SubResource("status").
		Body(body).Do(ctx).Into(&pod)
	if err != nil {
		return 0, fmt.Errorf("patching the status of pod %s: %w", c.pod.Pod, err)
	}
	return kube.ParseVersion(pod.ResourceVersion), nil
}
