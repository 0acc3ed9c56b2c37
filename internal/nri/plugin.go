package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Allocator knows the state of each container. Its methods return at once.
type Allocator interface {
	// Bind adds a local pod, whose demand is in an annotation. Leave removes it when it has ended, unless it is bound again.
	Bind(device.PodDemand)
	DropLocal(device.PodUID)
	// Claim returns the state of a container that is about to be created. If it may be created it counts as living from then on.
	Claim(device.Running) device.Readiness
	// Unclaim withdraws a claim of a container that is not created.
	Unclaim(device.Running)
	// Refused notes why a container was refused that has its devices. The grant has lapsed if the host lacks what it names:
	// then the container waits until the plugin has granted the devices again.
	Refused(c device.Container, why device.Wait, lapsed bool)
}

// Runtime receives the runtime's containers. Its methods return at once, except for RuntimeStarting.
type Runtime interface {
	// RuntimeStarting hears that a container's processes are about to run, and fails if they must not. It may wait for
	// RuntimeSynced to be worked through, until the context ends.
	RuntimeStarting(context.Context, device.Running) error
	RuntimeSynced([]device.Running, []device.PodDemand) // all containers, and all local pods
	RuntimeStarted(device.Running)                      // the container has all its devices
	RuntimeStopped(device.Running)                      // the container has ended, or was never started
	RuntimeRemoved(pod device.PodUID, sandbox string)   // the sandbox and all its containers are gone
	RuntimeLost()                                       // the connection is lost: no container is known until RuntimeSynced
}

// Pods reads pods that the watch has not reported.
type Pods interface {
	// Fetch reads the pod from the API server and binds it in the allocator, or fails.
	Fetch(context.Context, device.Pod) error
}

// Directories give plugin pods directories of their own to register in, with devmgrd's kubelet.sock in each. Their methods return in a
// few milliseconds.
type Directories interface {
	// Directory returns a pod's directory, and creates it if it is missing.
	Directory(pod device.Pod) (device.PluginDir, error)
	// OwnDirectory returns the directory that a pod has; false: none.
	OwnDirectory(device.PodUID) (device.PluginDir, bool)
	// PodGone hears that the last sandbox of a pod is gone, and PodsPresent which pods have one.
	PodGone(device.PodUID)
	PodsPresent(func(device.PodUID) bool)
}

// Notifier reports problems to the owners of pods. Its methods return at once.
type Notifier interface {
	// NotRedirected reports a container that was created without devmgrd and has the kubelet's plugin directory. still returns false
	// once the container has ended.
	NotRedirected(pod device.Pod, container string, still func() bool)
	// Contradiction reports that the plugins of a container's resources set one entry differently. The first one has won.
	Contradiction(pod device.Pod, container string, conflicts []string)
	// NotStarted reports a container that got its devices so many times in a row, and never started.
	NotStarted(pod device.Pod, container string, times int, why string)
	// NotSynchronized reports, on the Node, that the runtime cannot list its containers to devmgrd.
	NotSynchronized(why string)
}

const (
	// liveRead bounds the one read from the API server for a pod that the watch has not brought yet.
	liveRead = 300 * time.Millisecond
	// hookBudget bounds a hook as a whole. The runtime allows 2 s by default; a hook that is late is taken for dead, its
	// plugin is dropped, and a runtime without validators starts the container without its devices. Where the runtime
	// allows less, three quarters of that are ours.
	hookBudget = time.Second
)

// What the kubelet writes on a pod's sandbox to say where the pod came from (its ConfigSourceAnnotationKey).
const (
	sourceKey = "kubernetes.io/config.source"
	sourceAPI = "api"
)

// Annotations of pods that mean something to devmgrd.
const (
	resourcesKey = "devmgrd.io/resources"
	redirectKey  = "devmgrd.io/redirect"
	directoryKey = "devmgrd.io/plugin-directory"

	registryToo = "plugins_registry" // of redirectKey: lead a pod that mounts only the kubelet's plugins_registry
	common      = "common"           // of directoryKey: the pod's plugins register where those of the host do
)

// A plugin answers the runtime's calls over one connection.
type plugin struct {
	allocator     Allocator
	runtime       Runtime
	pods          Pods // nil: there is no API server
	notifier      Notifier
	redirect      *Redirect // nil: off
	dirs          Directories
	rules         Rules // nil: a plugin may grant anything
	maxWait       time.Duration
	log           *slog.Logger
	metrics       *metrics
	synced        func() // called when the runtime has told all
	hostChecks    *hostChecks
	hooks         *hooks
	notRedirected *notRedirected
	features      atomic.Pointer[features] // of the runtime; set by Configure
	sandboxes     sandboxes                // of local pods that are bound
	present       sandboxes                // of all pods
	answers       answers                  // if the runtime validates them
	attempts      attempts
}

// Configure is the runtime's first call. It identifies the runtime, and returns the events to which devmgrd subscribes.
func (p *plugin) Configure(_ context.Context, _, runtime, version string) (_ api.EventMask, err error) {
	defer p.survive("Configure", &err)
	can := featuresOf(runtime, version)
	p.features.Store(&can)
	p.log.Info("connected to container runtime", "runtime", can.runtime, "validates", can.validates)
	var events api.EventMask
	events.Set(api.Event_RUN_POD_SANDBOX, api.Event_STOP_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX,
		api.Event_CREATE_CONTAINER, api.Event_START_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
	if can.validates {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	} else {
		p.log.Warn("container runtime too old to fail closed", "runtime", can.runtime)
	}
	return events, nil
}

// hook notes that an event is being handled, until the returned function is called.
func (p *plugin) hook(event string) (end func()) {
	began, ended := time.Now(), p.hooks.begin(event)
	return func() {
		ended()
		p.metrics.hook(event, began)
	}
}

// Synchronize is the runtime's second call: all that it has. Events come only after we have returned.
func (p *plugin) Synchronize(_ context.Context, sandboxes []*api.PodSandbox, containers []*api.Container) (_ []*api.ContainerUpdate, err error) {
	defer p.hook("Synchronize")()
	defer p.survive("Synchronize", &err)
	used := make(map[string]bool, len(containers)) // sandboxes
	for _, c := range containers {
		used[c.GetPodSandboxId()] = true
	}
	pods := make(map[string]*api.PodSandbox, len(sandboxes))
	var local []device.PodDemand
	p.present.clear()
	for _, s := range sandboxes {
		pods[s.GetId()] = s
		p.present.add(s)
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
	expandable := maxExpanded
	all, astray := make([]device.Running, 0, len(containers)), map[string]notRedirectedContainer{}
	for _, c := range containers {
		pod := pods[c.GetPodSandboxId()]
		r := running(pod, c)
		p.present.addID(string(r.Container.Pod), c.GetPodSandboxId()) // the runtime may leave out a sandbox that it cannot reach
		r.Stamp, r.Digests = stamped(c.GetAnnotations(), &expandable)
		if at := c.GetCreatedAt(); at > 0 {
			r.Made = time.Unix(0, at)
		}
		r.Idle = c.GetState() == api.ContainerState_CONTAINER_CREATED && c.GetPid() == 0
		all = append(all, r)
		if p.hasKubeletDir(pod, c) {
			astray[c.GetId()] = notRedirectedContainer{device.PodContainer{Pod: identity(pod), Name: c.GetName()}, c.GetPodSandboxId()}
		}
	}
	p.dirs.PodsPresent(p.present.has)
	p.notRedirected.replace(astray)
	for id, c := range astray {
		p.notifier.NotRedirected(c.Pod, c.Name, func() bool { return p.notRedirected.has(id) })
	}
	p.runtime.RuntimeSynced(all, local)
	p.log.Info("synchronized with container runtime", "pods", len(sandboxes), "containers", len(all))
	p.synced()
	return nil, nil
}

// survive makes an error of a panic in a handler. Without it the process would end, and the runtime go on without us. It
// has to be deferred itself: a function that is deferred and calls it would catch nothing.
func (p *plugin) survive(event string, err *error) {
	if r := recover(); r != nil {
		p.log.Error("hook panicked", "event", event, "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("devmgrd: internal error: %v", r)
	}
}

// hasKubeletDir reports whether a container has a mount that should have been redirected: it was created while devmgrd was away, and has
// not ended.
func (p *plugin) hasKubeletDir(pod *api.PodSandbox, ctr *api.Container) bool {
	if p.redirect == nil || pod.GetAnnotations()[redirectKey] == "false" || ctr.GetState() == api.ContainerState_CONTAINER_STOPPED {
		return false
	}
	i := slices.IndexFunc(ctr.GetMounts(), p.redirect.names)
	if i < 0 {
		return false
	}
	p.log.Warn("container not redirected; restart its pod",
		"pod", identity(pod).String(), "container", ctr.GetName(), "at", ctr.GetMounts()[i].GetDestination())
	return true
}

func identity(pod *api.PodSandbox) device.Pod {
	return device.Pod{UID: device.PodUID(pod.GetUid()), Namespace: pod.GetNamespace(), Name: pod.GetName()}
}

// CreateContainer is the hook. It returns the container's devices, or the reason why the container may not start.
func (p *plugin) CreateContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (adj *api.ContainerAdjustment, _ []*api.ContainerUpdate, err error) {
	defer p.hook("CreateContainer")()
	defer func() {
		if err != nil {
			adj = nil
		}
	}()
	defer p.survive("CreateContainer", &err)
	id := identity(pod)
	ctx, cancel := context.WithTimeout(ctx, budget(ctx))
	defer cancel()

	adj = &api.ContainerAdjustment{}
	if err = p.redirectMounts(adj, pod, ctr); err == nil && len(adj.Mounts) > 0 {
		err = fits(pod, ctr, adj)
	}
	if err == nil {
		err = p.admit(ctx, adj, id, pod, ctr)
	}
	if err != nil {
		reason := device.UnknownPod
		if no := (*device.Refusal)(nil); errors.As(err, &no) {
			reason = no.Reason
		}
		err = brief(err)
		p.metrics.refused(reason)
		p.log.Info("container refused", "pod", id.String(), "container", ctr.GetName(), "reason", reason, "err", err)
		return nil, nil, fmt.Errorf("devmgrd: container %s of pod %s cannot start yet: %s: %w", ctr.GetName(), id, reason, err)
	}
	if p.features.Load().validates {
		p.answers.put(ctr.GetId(), adj)
	}
	return adj, nil, nil
}

// budget is the time for a hook that has to answer before ctx ends.
func budget(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(hookBudget, time.Until(end)*3/4)
	}
	return hookBudget
}

// redirectMounts redirects a device plugin's mounts.
func (p *plugin) redirectMounts(adj *api.ContainerAdjustment, pod *api.PodSandbox, ctr *api.Container) error {
	if p.redirect == nil || pod.GetAnnotations()[redirectKey] == "false" {
		return nil
	}
	registry := pod.GetAnnotations()[redirectKey] == registryToo
	instead, shared := p.redirect.mounts(ctr.GetMounts(), registry)
	if len(instead) > 0 {
		own, err := p.ownRedirect(pod, ctr, registry)
		if err != nil {
			return device.Refuse(device.PluginDirectoryMissing, err, "the plugin's own directory cannot be created")
		}
		if own != nil {
			instead, _ = own.mounts(ctr.GetMounts(), registry)
		}
	}
	for _, m := range instead {
		adj.AddMount(m)
		p.log.Info("redirected kubelet's plugin directory", "pod", pod.GetNamespace()+"/"+pod.GetName(), "container", ctr.GetName(), "at", m.Destination, "to", m.Source)
	}
	for _, at := range shared {
		p.log.Info("cannot redirect mount above kubelet's plugin directory",
			"pod", pod.GetNamespace()+"/"+pod.GetName(), "container", ctr.GetName(), "at", at)
	}
	return nil
}

// ownRedirect leads to the pod's own directory; nil: to the common one. A container that mounts the directory for reading only
// cannot put a socket into it. One that mounts a directory above has the kubelet's own files in its hands, and needs to see what all
// see.
func (p *plugin) ownRedirect(pod *api.PodSandbox, ctr *api.Container, registry bool) (*Redirect, error) {
	if !p.redirect.Own || pod.GetAnnotations()[directoryKey] == common || pod.GetUid() == "" {
		return nil, nil
	}
	id := identity(pod)
	p.present.add(pod)
	dir, has := p.dirs.OwnDirectory(id.UID)
	writes := slices.ContainsFunc(ctr.GetMounts(), func(m *api.Mount) bool {
		return p.redirect.direct(m, registry) && !slices.Contains(m.GetOptions(), "ro")
	})
	if !has && !writes {
		return nil, nil
	}
	if !has {
		var err error
		if dir, err = p.dirs.Directory(id); err != nil {
			return nil, err
		}
	}
	own := *p.redirect
	own.To, own.RegistryTo = dir.Sockets, dir.Registry
	return &own, nil
}

// admit adds a container's devices to adj, or returns the reason why the container may not start.
func (p *plugin) admit(ctx context.Context, adj *api.ContainerAdjustment, id device.Pod, pod *api.PodSandbox, ctr *api.Container) error {
	c := running(pod, ctr)
	local := p.local(pod)
	switch {
	case local:
		if err := p.bind(pod); err != nil {
			return device.Refuse(device.UnknownPod, err, "the pod's requests are not known")
		}
	case p.pods == nil || pod.GetAnnotations()[sourceKey] == "":
		return nil // no annotation, no demand
	}
	st, err := p.claim(ctx, id, c, !local)
	switch {
	case err != nil && !fromAPI(pod):
		return nil // a static pod without a mirror: it may be the API server itself
	case err != nil:
		return err
	}
	switch st.State {
	case device.NoDevices:
	case device.Ready:
		if err := p.inject(ctx, adj, id, st, pod, ctr); err != nil {
			p.allocator.Unclaim(c)
			if no := (*device.Refusal)(nil); errors.As(err, &no) {
				hangs := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
				lapsed := no.Reason == device.HostDeviceMissing && !hangs || errors.Is(err, errLapsed)
				p.allocator.Refused(c.Container, device.Wait{Reason: no.Reason, Message: shorten(err.Error())}, lapsed)
			}
			return err
		}
		if times, validated, report := p.attempts.given(c.Container, c.ID); report {
			p.notStarted(id, ctr.GetName(), times, validated)
		}
	case device.Unknown:
		return device.Refuse(device.UnknownPod, nil, "the pod is not known")
	default:
		return &device.Refusal{Wait: st.Wait}
	}
	p.runtime.RuntimeStarted(c)
	return nil
}

// notStarted reports a container that got its devices again and again, and never started.
func (p *plugin) notStarted(pod device.Pod, container string, times int, validated bool) {
	why := "the container runtime fails to create or to start it, or another NRI plugin refuses it"
	if p.features.Load().validates && !validated {
		why = "another NRI plugin refuses it, or sets the same variable, mount, device node, annotation or CDI device as devmgrd"
	}
	why += "; the kubelet's event Failed and the container runtime's log have the error"
	p.log.Warn("container created repeatedly, never started", "pod", pod.String(), "container", container, "times", times, "why", why)
	p.notifier.NotStarted(pod, container, times, why)
}

// inject adds a container's devices to adj. It looks at the host for that. A file system that hangs must not hold up the
// hook: then the container is refused, and the look ends when it may.
func (p *plugin) inject(ctx context.Context, adj *api.ContainerAdjustment, id device.Pod, st device.Readiness, pod *api.PodSandbox, ctr *api.Container) error {
	own := &api.ContainerAdjustment{}
	may, err := permitted(p.rules, device.PodContainer{Pod: id, Name: ctr.GetName()}, st.Assignment.Shares)
	if err != nil {
		return err
	}
	conflicts, err := adjust(ctx, p.hostChecks, may, own, st, ctr, *p.features.Load())
	if err != nil {
		return err
	}
	if len(conflicts) > 0 {
		p.log.Warn("device plugins conflict; using the first", "pod", id.String(), "container", ctr.GetName(), "conflicts", abridge(conflicts))
		p.notifier.Contradiction(id, ctr.GetName(), conflicts)
	}
	adj.Annotations, adj.Env, adj.Args, adj.Linux, adj.CDIDevices = own.Annotations, own.Env, own.Args, own.Linux, own.CDIDevices
	adj.Mounts = append(adj.Mounts, own.Mounts...) // what has been redirected stays
	return fits(pod, ctr, adj)
}

// claim looks the container up. It may read an unknown pod from the API server, once. It waits for an allocation in flight, but not
// long: every other container of the node waits with it.
func (p *plugin) claim(ctx context.Context, id device.Pod, c device.Running, mayRead bool) (device.Readiness, error) {
	st := p.allocator.Claim(c)
	if st.State == device.Unknown && mayRead {
		read, cancel := context.WithTimeout(ctx, liveRead)
		defer cancel()
		if err := p.pods.Fetch(read, id); err != nil {
			return st, device.Refuse(device.UnknownPod, err, "the pod is not known")
		}
		st = p.allocator.Claim(c)
	}
	if st.State != device.Busy {
		return st, nil
	}
	patience := time.NewTimer(p.maxWait)
	defer patience.Stop()
	for st.State == device.Busy {
		select {
		case <-st.Done:
			st = p.allocator.Claim(c)
		case <-patience.C:
			return st, nil
		case <-ctx.Done():
			return st, nil
		}
	}
	return st, nil
}

// StartContainer reports that a container's processes are about to run. It costs each container a round trip, and ends the
// doubt about containers that were created and not started when the runtime listed them. containerd does not start a
// container that is refused here; CRI-O logs the error only.
func (p *plugin) StartContainer(ctx context.Context, pod *api.PodSandbox, ctr *api.Container) (err error) {
	defer p.hook("StartContainer")()
	defer p.survive("StartContainer", &err)
	ctx, cancel := context.WithTimeout(ctx, budget(ctx))
	defer cancel()
	r := running(pod, ctr)
	if err := p.runtime.RuntimeStarting(ctx, r); err != nil {
		p.log.Warn("container must not start", "pod", identity(pod).String(), "uid", r.Container.Pod, "container", ctr.GetName(), "err", err)
		return fmt.Errorf("devmgrd: container %s of pod %s must not start: %w", ctr.GetName(), identity(pod), err)
	}
	p.attempts.forget(r.Container)
	return nil
}

// StopContainer reports that a container's processes have ended, or that it was not created after all.
func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.stopped("StopContainer", pod, ctr)
}

// RemoveContainer reports that a container is gone, and so has stopped: for some ends it is the only event.
func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, ctr *api.Container) error {
	return p.stopped("RemoveContainer", pod, ctr)
}

func (p *plugin) stopped(event string, pod *api.PodSandbox, ctr *api.Container) (err error) {
	defer p.hook(event)()
	defer p.survive(event, &err)
	p.answers.take(ctr.GetId())
	p.notRedirected.remove(ctr.GetId())
	p.runtime.RuntimeStopped(running(pod, ctr))
	return nil
}

// Where the runtime and the kubelet note a container's pod. In the events that end a container the pod may be missing.
const (
	sandboxUIDKey = "io.kubernetes.cri.sandbox-uid" // annotation by containerd
	podUIDKey     = "io.kubernetes.pod.uid"         // label by the kubelet
)

func running(pod *api.PodSandbox, ctr *api.Container) device.Running {
	uid := pod.GetUid()
	if uid == "" {
		uid = ctr.GetAnnotations()[sandboxUIDKey]
	}
	if uid == "" {
		uid = ctr.GetLabels()[podUIDKey]
	}
	return device.Running{ID: ctr.GetId(), Container: device.Container{Pod: device.PodUID(uid), Name: ctr.GetName()}, Sandbox: ctr.GetPodSandboxId()}
}
