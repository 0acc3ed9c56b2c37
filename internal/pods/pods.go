package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// A Sink receives the pods of this node. It is called under the store's lock: calls must be quick, never block, and never
// call back into this package.
type Sink interface {
	// Bind reports that a pod is bound to this node and active. It repeats with every change of the pod's status.
	Bind(device.PodDemand)
	// Drop reports that a pod has ended (Succeeded, Failed) or is gone from the API.
	Drop(device.PodUID)
	// Replace reports every active pod of the node, after each full list. All other pods are gone.
	Replace([]device.PodDemand)
}

// Config is what New needs. Ignored, Selectors, Claims and Served may be empty.
type Config struct {
	NodeName string
	Client   rest.Interface // core/v1
	Sink     Sink
	Ignored  []string // extended resources that no device plugin serves: names, or "domain/*"
	// Selectors has pods choose devices by their annotation devmgrd.io/devices.
	Selectors bool
	// Claims has demands name the containers' claims. The Sink finds the devices.
	Claims  bool
	Runtime Runtime
	// Served are the pods that had devices before devmgrd's start.
	Served map[device.Pod]bool
	Log    *slog.Logger
}

// A Runtime is what the container runtime shows of pods' sandboxes.
type Runtime interface {
	// Has reports whether the runtime has a pod.
	Has(device.PodUID) bool
	// Static reports whether the runtime has a static pod of that UID, namespace and name, and whether its own annotation has its requests.
	Static(device.Pod) (shown, local bool)
	// Changed has a value when Static may return something else.
	Changed() <-chan struct{}
}

// Pods follows the pods of this node.
type Pods struct {
	node   string
	client rest.Interface
	store  *store
	watch  *kube.Watch
}

// New returns Pods; Run starts it.
func New(cfg Config) *Pods {
	if cfg.NodeName == "" || cfg.Client == nil || cfg.Sink == nil || cfg.Runtime == nil || cfg.Log == nil {
		panic("pods: NodeName, Client, Sink, Runtime and Log are required")
	}
	s := newStore(reader{ignoring(cfg.Ignored), cfg.Selectors, cfg.Claims}, cfg.Sink, cfg.Runtime)
	s.served = cfg.Served
	return &Pods{
		node:   cfg.NodeName,
		client: cfg.Client,
		store:  s,
		watch: kube.NewWatch(kube.WatchConfig{
			Name:     "the pods of this node",
			Client:   cfg.Client,
			Resource: "pods",
			Selector: fields.OneTermEqualSelector("spec.nodeName", cfg.NodeName),
			New:      func() (object, list runtime.Object) { return &corev1.Pod{}, &corev1.PodList{} },
			Trim:     s.reader.trim,
			Store:    s,
			Log:      cfg.Log,
		}),
	}
}

// Run follows the pods until ctx ends, which is not an error.
func (p *Pods) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watch.Run(ctx) })
	group.Go(func() error { p.store.followRuntime(ctx); return nil })
	return group.Wait()
}

// Check returns nil while the Sink is up to date, and otherwise the reason why it may not be.
func (p *Pods) Check() error { return p.watch.Check() }

// Shown returns the pods of the Sink that request devices, as the API server shows them.
func (p *Pods) Shown() map[device.PodUID]device.ShownPod { return p.store.shown() }

// ShownChanged has a value when Shown has a new pod, or another state of one; not when a pod has left.
func (p *Pods) ShownChanged() <-chan struct{} { return p.store.showing }

// Fetch asks the API server for one pod that the watch has not delivered yet, and binds it. The runtime has the pod: a mirror pod counts also
// while it shows the terminal phase of its static pod's last run. After nil the Sink knows the pod.
// ErrNotFound means that this node has no such pod, ErrUnavailable that the answer is not known, a *device.Refusal that there is no room for it.
//
// It returns when ctx ends, also while the Sink is busy: the pod is then bound later.
func (p *Pods) Fetch(ctx context.Context, pod device.Pod) error {
	done := make(chan error, 1)
	go func() { done <- p.fetch(ctx, pod) }() // it ends with ctx, or when the Sink has taken the pod
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("reading pod %s: %w: %w", pod, ErrUnavailable, ctx.Err())
	}
}

func (p *Pods) fetch(ctx context.Context, pod device.Pod) error {
	if p.store.knows(pod) {
		return nil
	}
	seen, err := p.read(ctx, pod)
	switch {
	case err != nil:
		return err
	case seen.demand.Pod.UID != pod.UID, seen.ended && !seen.mirror:
		err = ErrNotFound
	default:
		err = p.store.fetched(seen)
	}
	if errors.Is(err, ErrNotFound) {
		err = fmt.Errorf("reading pod %s, UID %s: %w", pod, pod.UID, ErrNotFound)
	}
	return err
}

// ServiceAccount returns the name of a pod's service account; empty: the watch has not delivered the pod.
func (p *Pods) ServiceAccount(pod device.Pod) string { return p.store.account(pod) }

// Named returns the pod of that UID, also one that has left the API server while the runtime has it. It is false if the watch has not delivered it.
func (p *Pods) Named(uid device.PodUID) (device.Pod, bool) { return p.store.named(uid) }

// Confined reports whether a pod has nothing of the host's, by which it could have a device of a pod of another namespace. It knows the pods
// that Named knows.
func (p *Pods) Confined(uid device.PodUID) bool { return p.store.confined(uid) }

// Find asks the API server for the pod of that name, which the watch has not delivered yet, and binds it. It returns false if
// this node has no such pod, and an error if the answer is not known.
func (p *Pods) Find(ctx context.Context, namespace, name string) (bool, error) {
	seen, err := p.read(ctx, device.Pod{Namespace: namespace, Name: name})
	if err == nil && !seen.ended {
		err = p.store.fetched(seen)
	}
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil && !seen.ended, err
}

// Ended reads from the API server how the pod of that name ended. It returns false if this node has no such pod, or if the
// kubelet may start containers of it.
func (p *Pods) Ended(ctx context.Context, namespace, name string) (device.EndedPod, bool, error) {
	object, err := p.get(ctx, device.Pod{Namespace: namespace, Name: name})
	switch {
	case errors.Is(err, ErrNotFound):
		return device.EndedPod{}, false, nil
	case err != nil:
		return device.EndedPod{}, false, err
	case object.Spec.NodeName != p.node || !ended(object) && !leaving(object):
		return device.EndedPod{}, false, nil
	}
	return ending(object), true, nil
}

// read asks the API server for one pod of this node.
func (p *Pods) read(ctx context.Context, pod device.Pod) (podState, error) {
	object, err := p.get(ctx, pod)
	if err != nil {
		return podState{}, err
	}
	seen, ok := p.store.reader.pod(object)
	if !ok || seen.node != p.node {
		return podState{}, fmt.Errorf("reading pod %s: %w", pod, ErrNotFound)
	}
	return seen, nil
}

// get asks the API server for one pod.
func (p *Pods) get(ctx context.Context, pod device.Pod) (*corev1.Pod, error) {
	object := &corev1.Pod{}
	err := p.client.Get().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).Do(ctx).Into(object)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("reading pod %s: %w", pod, ErrNotFound)
	case apierrors.IsForbidden(err):
		return nil, &forbiddenError{pod, err}
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w: %w", pod, ErrUnavailable, err)
	}
	return object, nil
}

// A forbiddenError reports that the API server does not let devmgrd read a pod: the node authorizer shows a node the pods that are
// bound to it, and no others, whether they exist or not. It is an ErrUnavailable on purpose: the authorizer may not have seen the
// pod's binding yet.
type forbiddenError struct {
	pod device.Pod
	err error // the API server's
}

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("reading pod %s: the API server shows devmgrd only the pods that it knows to be bound to this node; "+
		"kubectl -n %s get pod %s -o wide names the pod's node: %v", e.pod, e.pod.Namespace, e.pod.Name, e.err)
}

func (e *forbiddenError) Unwrap() []error { return []error{ErrUnavailable, e.err} }

var (
	// ErrNotFound: the pod is not in the API, has ended, or does not run on this node.
	ErrNotFound = errors.New("no such pod on this node")
	// ErrUnavailable: the API server could not be reached, did not answer, or does not show the pod (yet).
	ErrUnavailable = errors.New("the API server is unavailable")
)
