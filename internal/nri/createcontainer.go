package nri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

const (
	// liveRead bounds the one read from the API server for a pod that the watch has not reported.
	liveRead = 300 * time.Millisecond
	// hookBudget bounds a hook. By default the runtime allows 2 s and then drops the plugin; without validators it starts the
	// container without its devices. If the runtime allows less, the hook takes at most three quarters of that.
	hookBudget = time.Second
)

// CreateContainer answers with the container's devices, or with the reason why the container has to wait.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (adj *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	defer p.hook("CreateContainer")()
	defer func() {
		if err != nil {
			adj = nil
		}
	}()
	defer p.survive("CreateContainer", &err)
	p.Presence.sandboxes.add(pod) // the event of its start may have been missed
	if guarded := guards(ctr); p.Claims != nil && len(guarded) > 0 {
		defer p.Claims.Used(guarded...) // also if the container is refused
	}
	id, name := identity(pod), nameOf(ctr)
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, min(budget(ctx), max(p.allowances.left(id.Namespace), leastPatience)))
	defer cancel()

	p.endFormer(ctx, id.Namespace, running(pod, ctr))
	adj = &api.ContainerAdjustment{}
	if err = p.redirectMounts(adj, pod, ctr); err == nil && len(adj.Mounts) > 0 {
		err = fits(pod, ctr, adj)
	}
	if err == nil {
		err = p.addDevices(ctx, adj, id, pod, ctr)
	}
	withoutCopy(adj, ctr)
	if ctx.Err() != nil && err != nil {
		p.allowances.spend(id.Namespace, time.Since(began))
	}
	if err != nil {
		reason := device.UnknownPod
		if no := (*device.Refusal)(nil); errors.As(err, &no) {
			reason = no.Reason
		}
		err = brief(err)
		p.metrics.refused(reason)
		p.Log.Info("container refused", "pod", id.String(), "container", name, "reason", reason, "err", err)
		return nil, nil, fmt.Errorf("devmgrd: container %s of pod %s cannot start yet: %s: %w", name, id, reason, err)
	}
	if p.features.Load().validates {
		p.answers.put(ctr.GetId(), adj)
	}
	return adj, nil, nil
}

// budget returns the time for a hook that has to answer before ctx ends.
func budget(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(hookBudget, time.Until(end)*3/4)
	}
	return hookBudget
}

// addDevices adds a container's devices to adj, or returns the reason why the container has to wait.
func (p *plugin) addDevices(ctx context.Context, adj *api.ContainerAdjustment, id device.Pod, pod *api.PodSandbox, ctr *api.Container) error {
	c := running(pod, ctr)
	local := p.local(pod)
	switch {
	case local:
		if err := p.bind(pod); err != nil {
			return device.Refuse(device.UnknownPod, err, "the pod's requests are not known")
		}
		if c.Container.Name == "" {
			return device.Refuse(device.UnknownPod, nil, "the runtime does not name the container, so its request in the pod's annotation is not known; set the label io.kubernetes.container.name")
		}
	case p.Pods == nil || pod.GetAnnotations()[sourceKey] == "":
		return foreignClaims(ctr) // no annotation, no demand
	}
	st, err := p.ask(ctx, id, c, !local)
	no, _ := errors.AsType[*device.Refusal](err)
	switch {
	case err != nil && !fromAPI(pod) && no != nil && no.Reason == device.UnknownPod:
		if err := foreignClaims(ctr); err != nil {
			return err
		}
		p.attempts.given(c.Container, c.ID, nil)
		p.Runtime.RuntimeUnserved(c) // a static pod without a mirror: it may be the API server itself
		return nil
	case err != nil:
		return err
	}
	switch st.State {
	case device.NoDevices:
		if err := foreignClaims(ctr); err != nil {
			p.Allocator.RuntimeAborted(c)
			return err
		}
		p.attempts.given(c.Container, c.ID, nil)
	case device.Ready:
		if err := p.inject(ctx, adj, id, st, pod, ctr); err != nil {
			p.Allocator.RuntimeAborted(c)
			if no, is := errors.AsType[*device.Refusal](err); is {
				hangs := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
				lapsed := no.Reason == device.HostDeviceMissing && !hangs || errors.Is(err, errLapsed)
				p.Allocator.Refused(c.Container, device.Wait{Reason: no.Reason, Message: device.ClipTo(err.Error(), maxError)}, lapsed)
			}
			return err
		}
		if c.Restored { // no start of it is reported, so none is missing
			break
		}
		if times, validated, report := p.attempts.given(c.Container, c.ID, cdiNames(st.Assignment.Shares)); report {
			p.notStarted(id, c.Container.Name, times, validated)
		}
	case device.Unknown:
		return device.Refuse(device.UnknownPod, nil, "the pod is not known, or the kubelet should start no further container of it")
	default:
		return &device.Refusal{Wait: st.Wait}
	}
	p.Runtime.RuntimeInjected(c)
	return nil
}

// notStarted reports a container that got its devices several times and never started.
func (p *plugin) notStarted(pod device.Pod, container string, times int, validated bool) {
	why := "the container runtime fails to create or to start it, or another NRI plugin refuses it"
	if p.features.Load().validates && !validated {
		why = "another NRI plugin refuses it, or sets the same variable, mount, device node, annotation or CDI device as devmgrd"
	}
	why += "; the kubelet's event Failed and the container runtime's log have the error"
	p.Log.Warn("container created repeatedly, never started", "pod", pod.String(), "container", container, "times", times, "why", why)
	p.Notifier.NotStarted(pod, container, times, why)
}

// inject adds a container's devices to adj. It looks at the host for that; if a file system hangs, the container is refused before
// the hook is late.
func (p *plugin) inject(ctx context.Context, adj *api.ContainerAdjustment, id device.Pod, st device.Readiness, pod *api.PodSandbox, ctr *api.Container) error {
	own := &api.ContainerAdjustment{}
	injected, missing, err := p.checkClaims(ctx, st, ctr)
	if err != nil {
		return err
	}
	if injected {
		for _, name := range missing {
			if !p.features.Load().cdi {
				return device.Refuse(device.ClaimMismatch, nil, "the container lacks the device plugin's CDI device %s, which %s cannot add", name, p.features.Load().runtime)
			}
			adj.AddCDIDevice(&api.CDIDevice{Name: name})
		}
		adj.AddAnnotation(stampKey, stamp(st.Assignment))
		return fits(pod, ctr, adj)
	}
	may, err := permitted(p.Rules, device.PodContainer{Pod: id, Name: nameOf(ctr)}, st.Assignment.Shares)
	if err != nil {
		return err
	}
	conflicts, err := adjust(ctx, p.hostChecks.ForHook(id.Namespace), may, own, st, ctr, *p.features.Load())
	if err != nil {
		return err
	}
	if len(conflicts) > 0 {
		p.Log.Warn("device plugins conflict; using the first", "pod", id.String(), "container", nameOf(ctr), "conflicts", lists.First(conflicts, maxNamed))
		p.Notifier.Contradiction(id, nameOf(ctr), conflicts)
	}
	p.unguard(ctx, own, st, ctr)
	adj.Annotations, adj.Env, adj.Args, adj.Linux, adj.CDIDevices = own.Annotations, own.Env, own.Args, own.Linux, own.CDIDevices
	adj.Mounts = append(adj.Mounts, own.Mounts...) // what has been redirected stays
	return fits(pod, ctr, adj)
}

// ask asks the allocator about a container. It reads a pod that the watch has not reported from the API server, once, and waits
// for an allocation in progress for at most maxWait: all other containers of the node wait for the hook.
func (p *plugin) ask(ctx context.Context, id device.Pod, c device.Running, mayRead bool) (device.Readiness, error) {
	st := p.Allocator.RuntimeCreating(ctx, c)
	if st.State == device.Unknown && mayRead {
		read, cancel := context.WithTimeout(ctx, liveRead)
		defer cancel()
		if err := p.Pods.Fetch(read, id); err != nil {
			if no := (*device.Refusal)(nil); errors.As(err, &no) {
				return st, no
			}
			return st, device.Refuse(device.UnknownPod, err, "the pod is not known")
		}
		st = p.Allocator.RuntimeCreating(ctx, c)
	}
	if st.State != device.Pending {
		return st, nil
	}
	began := time.Now()
	patience := time.NewTimer(min(p.MaxWait, p.allowances.left(id.Namespace)))
	defer patience.Stop()
	for st.State == device.Pending {
		select {
		case <-st.Done:
			st = p.Allocator.RuntimeCreating(ctx, c)
		case <-patience.C:
			p.allowances.spend(id.Namespace, time.Since(began))
			return st, nil
		case <-ctx.Done():
			return st, nil
		}
	}
	return st, nil
}
