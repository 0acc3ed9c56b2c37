package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Synchronize receives all sandboxes and containers when the runtime connects. The runtime sends no event before it has returned.
func (p *plugin) Synchronize(_ context.Context, listed []*api.PodSandbox, containers []*api.Container) (_ []*api.ContainerUpdate, err error) {
	defer p.hook("Synchronize")()
	defer p.survive("Synchronize", &err)
	// If fewer than four are left to list, NRI 0.12.5 adds empty entries or panics.
	listed = slices.DeleteFunc(listed, func(s *api.PodSandbox) bool { return s.GetId() == "" })
	containers = slices.DeleteFunc(containers, func(c *api.Container) bool { return c.GetId() == "" })
	used := make(map[string]bool, len(containers)) // sandboxes
	for _, c := range containers {
		used[c.GetPodSandboxId()] = true
	}
	pods := make(map[string]*api.PodSandbox, len(listed))
	var local []device.PodDemand
	var present sandboxes
	for _, s := range listed {
		pods[s.GetId()] = s
		present.add(s)
		// The runtime lists stopped sandboxes too, until the kubelet removes them; they have no process. Some running sandboxes
		// have none either: their containers show them, or devmgrd sees them when they get one.
		if !p.local(s) || s.GetPid() == 0 && !used[s.GetId()] {
			continue
		}
		if d, err := demandOf(s); err == nil { // else its containers are refused with that error
			p.sandboxes.add(s)
			local = append(local, d)
		}
	}
	kubelets := &device.Kubelets{}
	if p.Kubelets != nil {
		kubelets = p.Kubelets()
	}
	expandable, copied := maxExpanded, maxCopied
	all, astray := make([]device.Running, 0, len(containers)), map[string]notRedirectedContainer{}
	for _, c := range containers {
		pod := pods[c.GetPodSandboxId()]
		r := running(pod, c)
		present.addID(string(r.Container.Pod), c.GetPodSandboxId(), "") // the runtime may leave out a sandbox that it cannot reach
		if ended(c) {
			continue
		}
		r.Stamp, r.Digests = p.says(pod, c, r.Container, kubelets.Pods[r.Container.Pod][r.Container.Name], &expandable, &copied)
		if at := c.GetCreatedAt(); at > 0 {
			r.Made = time.Unix(0, at)
		}
		r.Idle = c.GetState() == api.ContainerState_CONTAINER_CREATED && c.GetPid() == 0
		all = append(all, r)
		if p.hasKubeletDir(pod, c) {
			astray[c.GetId()] = notRedirectedContainer{device.PodContainer{Pod: identity(pod), Name: nameOf(c)}, c.GetPodSandboxId()}
		}
	}
	p.ifConnected(func() {
		p.Presence.sandboxes.replace(&present)
		p.Dirs.PodsPresent(p.Presence.sandboxes.has)
		p.notRedirected.replace(astray)
		for id, c := range astray {
			p.Notifier.NotRedirected(c.Pod, c.Name, func() bool { return p.notRedirected.has(id) })
		}
		p.Runtime.RuntimeSynced(all, local)
		p.Log.Info("synchronized with container runtime", "pods", len(listed), "containers", len(all))
	})
	return nil, nil
}

// ended reports whether a listed container has ended. One that ends while the runtime makes the list is in it, by containerd 2.3 and later in an unknown state,
// and containerd reports its end at its removal or not at all.
func ended(c *api.Container) bool {
	return c.GetState() == api.ContainerState_CONTAINER_STOPPED || c.GetFinishedAt() > 0
}

// says returns the devices and the digests that a container says it has. Of each resource its own stamp or CDI devices count, then the kubelet's file, which has what was
// created before devmgrd came to the node and not imported, then a copy of its pod's annotation. expandable and copied are how many devices may still be read of
// stamps, and of such copies.
func (p *plugin) says(pod *api.PodSandbox, c *api.Container, id device.Container, kubelets device.Choice, expandable, copied *int) (ids map[device.ResourceName][]device.ID, digests map[device.ResourceName]string) {
	isCopy := fromPod(pod, c)
	if !isCopy {
		ids, digests = stamped(c.GetAnnotations(), expandable)
	}
	if ids == nil && digests == nil {
		ids = p.alone(c, id)
	}
	var copies map[device.ResourceName][]device.ID
	if isCopy && ids == nil {
		copies, _ = stamped(c.GetAnnotations(), copied)
	}
	for _, more := range []map[device.ResourceName][]device.ID{kubelets, copies} {
		for r, of := range more {
			if _, sealed := digests[r]; !sealed && ids[r] == nil {
				lists.Put(&ids, r, of)
			}
		}
	}
	return ids, digests
}

// StartContainer reports that a container's processes are about to run. It costs a round trip for each container, and decides
// whether containers that the runtime listed as created do run. containerd does not start a container that is refused here; CRI-O
// only logs the error.
func (p *plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (err error) {
	defer p.hook("StartContainer")()
	defer p.survive("StartContainer", &err)
	ctx, cancel := context.WithTimeout(ctx, budget(ctx))
	defer cancel()
	r := running(pod, ctr)
	if left := maxCopied; !fromPod(pod, ctr) { // it counts if the runtime has not listed the container
		r.Stamp, r.Digests = stamped(ctr.GetAnnotations(), &left)
	}
	if err := p.Runtime.RuntimeStarting(ctx, r); err != nil {
		p.Log.Warn("container must not start", "pod", identity(pod).String(), "uid", r.Container.Pod, "container", nameOf(ctr), "err", err)
		return fmt.Errorf("devmgrd: container %s of pod %s must not start: %w", nameOf(ctr), identity(pod), err)
	}
	p.attempts.forget(r.Container)
	return nil
}

// StopContainer reports that a container's processes have ended, or that it was not created after all.
func (p *plugin) StopContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.stopped(ctx, "StopContainer", pod, ctr)
}

// RemoveContainer reports that a container is gone and so has stopped: for some containers the runtime sends no other event.
func (p *plugin) RemoveContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	return p.stopped(ctx, "RemoveContainer", pod, ctr)
}

func (p *plugin) stopped(ctx context.Context, event string, pod *api.PodSandbox, ctr *api.Container) (err error) {
	defer p.hook(event)()
	defer p.survive(event, &err)
	p.answers.take(ctr.GetId())
	p.notRedirected.remove(ctr.GetId())
	c := running(pod, ctr)
	p.reportEnd(ctx, pod.GetNamespace(), c, p.attempts.unstarted(c.Container, c.ID))
	return nil
}

// endFormer reports the end of the former container of a name if it has not started. CRI-O does not report that it could not create a container, and the
// kubelet creates no other while it means to start the former one.
func (p *plugin) endFormer(ctx context.Context, namespace string, c device.Running) {
	if !p.features.Load().crio {
		return
	}
	former, cdi := p.attempts.former(c.Container, c.ID)
	if former == "" {
		return
	}
	p.answers.take(former)
	c.ID = former
	p.reportEnd(ctx, namespace, c, cdi)
}

// reportEnd reports the end of a container. cdi are its CDI devices if it has not started.
func (p *plugin) reportEnd(ctx context.Context, namespace string, c device.Running, cdi []string) {
	if len(cdi) > 0 {
		ctx, cancel := context.WithTimeout(ctx, min(budget(ctx), p.allowances.left(namespace)))
		defer cancel()
		began := time.Now()
		c.Lacks, _ = checkHost(ctx, p.hostChecks.ForHook(namespace), "files of CDI devices", strings.Join(cdi, ", "), func() (string, error) { return cdiLacks(cdiDirs, cdi), nil })
		if ctx.Err() != nil {
			p.allowances.spend(namespace, time.Since(began))
		}
	}
	p.Runtime.RuntimeStopped(c)
}
