package nri

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// An Allocator knows the state of each container. Its methods return at once, except that RuntimeCreating and Readiness wait for its lock.
type Allocator interface {
	// Bind adds a local pod. DropLocal removes it when it has ended, unless it is bound again.
	Bind(device.PodDemand)
	DropLocal(device.PodUID)
	// RuntimeCreating returns the state of a container that is about to be created. If its devices are ready, it counts as running from then
	// on. It answers before ctx ends.
	RuntimeCreating(context.Context, device.Running) device.Readiness
	// Readiness returns the state of a container, as RuntimeCreating does, without counting it.
	Readiness(device.Container) device.Readiness
	// RuntimeAborted reports that the container is not created after all.
	RuntimeAborted(device.Running)
	// Refused records why a container with devices was refused. lapsed: the host lacks something that the grant names, and the
	// container waits until the plugin has granted the devices again.
	Refused(c device.Container, why device.Wait, lapsed bool)
}

// Runtime receives the runtime's containers. Its methods return at once, except for RuntimeStarting.
type Runtime interface {
	// RuntimeStarting fails if a container's processes must not start. If that is in question, it may wait until RuntimeSynced is done, or ctx ends.
	RuntimeStarting(context.Context, device.Running) error
	RuntimeSynced([]device.Running, []device.PodDemand) // all containers, and all local pods
	RuntimeInjected(device.Running)                     // the container has all its devices
	RuntimeUnserved(device.Running)                     // the container is created without devices: its static pod is not known
	RuntimeStopped(device.Running)                      // the container has ended, or was never started
	RuntimeRemoved(pod device.PodUID, sandbox string)   // the sandbox and all its containers are gone
	RuntimeLost()                                       // the connection is lost: which containers there are is not certain until RuntimeSynced
}

// Pods reads pods that the watch has not reported.
type Pods interface {
	// Fetch reads the pod from the API server and binds it in the allocator.
	Fetch(context.Context, device.Pod) error
}

// Directories are the plugin pods' own directories, with devmgrd's kubelet.sock in them. Their methods return in a few
// milliseconds.
type Directories interface {
	// Directory returns a pod's directory, and creates it if it is missing.
	Directory(pod device.Pod) (device.PluginDir, error)
	// OwnDirectory returns a pod's directory if it has one.
	OwnDirectory(device.PodUID) (device.PluginDir, bool)
	// PodGone reports that a pod's last sandbox is gone, PodsPresent which pods have a sandbox.
	PodGone(device.PodUID)
	PodsPresent(func(device.PodUID) bool)
}

// Notifier reports problems to the owners of pods. Its methods return at once.
type Notifier interface {
	// NotRedirected reports a container that was created without devmgrd and has the kubelet's plugin directory. still returns false
	// once the container has ended.
	NotRedirected(pod device.Pod, container string, still func() bool)
	// Contradiction reports that plugins of one container set an entry differently. The first one has won.
	Contradiction(pod device.Pod, container string, conflicts []string)
	// NotStarted reports a container that got its devices so many times in a row and never started.
	NotStarted(pod device.Pod, container string, times int, why string)
	// NotSynchronized reports, on the Node, that the runtime cannot list its containers to devmgrd.
	NotSynchronized(why string)
}

// sourceKey is the kubelet's annotation with the origin of a pod (ConfigSourceAnnotationKey).
const (
	sourceKey = "kubernetes.io/config.source"
	sourceAPI = "api"
)

// Annotations of pods that devmgrd reads.
const (
	resourcesKey = "devmgrd.io/resources"
	redirectKey  = "devmgrd.io/redirect"
	directoryKey = "devmgrd.io/plugin-directory"

	registryToo = "plugins_registry" // of redirectKey: lead a pod that mounts only the kubelet's plugins_registry
	common      = "common"           // of directoryKey: the pod's plugins register where those of the host do
)

// A plugin handles the runtime's events of one connection.
type plugin struct {
	*Connection
	ifConnected func(report func()) // calls report at the end of Synchronize, unless the connection is lost
	sandboxes   sandboxes           // of local pods that are bound
	answers     answers             // if the runtime validates them
	attempts    attempts
}

// Configure is the runtime's first call. It identifies the runtime, and returns the events to which devmgrd subscribes.
func (p *plugin) Configure(_ context.Context, _, runtime, version string) (_ api.EventMask, err error) {
	defer p.survive("Configure", &err)
	can := featuresOf(runtime, version)
	p.features.Store(&can)
	p.Log.Info("connected to container runtime", "runtime", can.runtime, "validates", can.validates)
	var events api.EventMask
	events.Set(api.Event_RUN_POD_SANDBOX, api.Event_STOP_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX,
		api.Event_CREATE_CONTAINER, api.Event_START_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER)
	if can.validates {
		events.Set(api.Event_VALIDATE_CONTAINER_ADJUSTMENT)
	}
	if limits := can.limits(); len(limits) > 0 {
		p.Log.Warn("container runtime too old for all features", "runtime", can.runtime,
			"limits", lists.Map(limits, func(l device.Limit) string { return l.Text }))
	}
	return events, nil
}

// hook counts an event as in progress until the returned function is called.
func (p *plugin) hook(event string) (end func()) {
	began, ended := time.Now(), p.hooks.begin(event)
	return func() {
		ended()
		p.metrics.hooks.WithLabelValues(event).Observe(time.Since(began).Seconds())
	}
}

// survive turns a panic in a handler into an error. Without it the process would end, and the runtime would continue without
// devmgrd. The handler must defer survive directly: recover returns nil in a function that a deferred function calls.
func (p *plugin) survive(event string, err *error) {
	if r := recover(); r != nil {
		p.Log.Error("hook panicked", "event", event, "panic", r, "stack", string(debug.Stack()))
		*err = fmt.Errorf("devmgrd: internal error: %v", r)
	}
}

func identity(pod *api.PodSandbox) device.Pod {
	return device.Pod{UID: device.PodUID(pod.GetUid()), Namespace: pod.GetNamespace(), Name: pod.GetName()}
}

// Labels and annotations in which the runtime and the kubelet record a container's pod. Events that end a container may lack the
// pod.
const (
	sandboxUIDKey = "io.kubernetes.cri.sandbox-uid" // annotation by containerd
	podUIDKey     = "io.kubernetes.pod.uid"         // label by the kubelet
	nameKey       = "io.kubernetes.container.name"  // label by the kubelet

	restoredKey = "restored" // annotation by containerd: the container is restored from a checkpoint

	crioMetadataKey = "io.kubernetes.cri-o.Metadata" // annotation by CRI-O, of the CRI's ContainerMetadata
)

func running(pod *api.PodSandbox, ctr *api.Container) device.Running {
	uid := pod.GetUid()
	if uid == "" {
		uid = ctr.GetAnnotations()[sandboxUIDKey]
	}
	if uid == "" {
		uid = ctr.GetLabels()[podUIDKey]
	}
	_, isCopy := pod.GetAnnotations()[restoredKey] // its owner has written it
	return device.Running{ID: ctr.GetId(), Container: device.Container{Pod: device.PodUID(uid), Name: nameOf(ctr)}, Sandbox: ctr.GetPodSandboxId(),
		Restored: ctr.GetAnnotations()[restoredKey] == "true" && !isCopy}
}

// nameOf returns the container's name in its pod. The kubelet's label counts first: containerd 2.1 to 2.3 name all containers restored from a checkpoint "containerd".
// Other clients do not set the label, and CRI-O then has the name in an annotation only.
func nameOf(ctr *api.Container) string {
	var metadata struct{ Name string }
	if name := cmp.Or(ctr.GetLabels()[nameKey], ctr.GetName()); name != "" || json.Unmarshal([]byte(ctr.GetAnnotations()[crioMetadataKey]), &metadata) != nil {
		return name
	}
	return metadata.Name
}
