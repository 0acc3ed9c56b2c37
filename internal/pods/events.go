package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Events reports the fate of pods' requests to their owners, as events on Pods and on the Node. A report never blocks: events that
// cannot be sent in time, because the API server is away or there are too many, are dropped.
type Events struct {
	node        string
	client      rest.Interface
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// Reasons of events.
const (
	waitingForDevices = "WaitingForDevices"
	devicesAssigned   = "DevicesAssigned"
	waitGivenUp       = "WaitGivenUp"
	deviceFailed      = "DeviceFailed"
	deviceRefused     = "DeviceRefused"
	contradiction     = "PluginsContradict"
	notStarted        = "ContainerNotStarted"
	startedWithout    = "StartedWithoutDevices"
	notRedirected     = "PluginNotRedirected"
	notAllowed        = "PluginNotAllowed"
	contested         = "DevicesContested"
	invalidCordons    = "InvalidCordonAnnotation"
	notSynchronized   = "RuntimeNotSynchronized"
)

// A Kind is the events with one reason.
type Kind struct {
	Reason  string
	Type    string   // Normal or Warning
	Objects []string // the kinds of object that the events are on
	Meaning string   // Markdown, for docs/watch.md
}

// Kinds returns the kinds of events that devmgrd sends.
func Kinds() []Kind {
	const normal, warning = corev1.EventTypeNormal, corev1.EventTypeWarning
	onPod, onNode := []string{"Pod"}, []string{"Node"}
	return []Kind{
		{waitingForDevices, warning, onPod, "the pod waits; the message begins with the reason. Another event follows when it changes, but for counts in `NotEnoughDevices` and `DeviceUnhealthy`"},
		{devicesAssigned, normal, onPod, "the message has the containers and their devices"},
		{waitGivenUp, warning, onPod, "the pod has waited for as long as [`wait.giveUpAfter`](configuration.md#an-end-to-waiting) allows, and is evicted"},
		{deviceFailed, warning, onPod, "devices of the pod are unhealthy, or their plugin has stopped listing them"},
		{deviceRefused, warning, onNode, "a device is listed as healthy, and [its plugin refuses it](devices.md#a-device-that-its-plugin-refuses)"},
		{contradiction, warning, onPod, "two resources of one container set one field differently; the first resource by name wins"},
		{notStarted, warning, onPod, "the container received its devices several times in a row, and never started"},
		{startedWithout, warning, onPod, "the container started [without its devices](waiting.md#a-container-without-its-devices)"},
		{notRedirected, warning, onPod, "the container started while devmgrd was away: [its plugin is registered with the kubelet](waiting.md#a-plugin-is-missing)"},
		{notAllowed, warning, []string{"Pod", "Node"}, "a [rule](configuration.md#rules-for-device-plugins) does not allow a registration or a grant; the message names the rule"},
		{contested, warning, onNode, "another writer keeps changing the Node's capacity of a resource, or the kubelet's device manager has it too"},
		{invalidCordons, warning, onNode, "the Node's annotation [`devmgrd.io/cordon`](devices.md#a-device-out-of-service) has a mistake; the cordons before stay in force"},
		{notSynchronized, warning, onNode, "[the runtime cannot list its containers](waiting.md#the-runtime-cannot-list-its-containers): containers that request devices cannot start"},
	}
}

// maxMessage bounds an event's text, which may name thousands of devices. It is the API's limit for an event's note.
const maxMessage = 1024

// NewEvents returns Events; Run sends them. With a nil client they are dropped.
func NewEvents(node string, client rest.Interface) *Events {
	b := record.NewBroadcaster()
	scheme := runtime.NewScheme() // references are used as given: no type is needed
	return &Events{node, client, b, b.NewRecorder(scheme, corev1.EventSource{Component: "devmgrd", Host: node})}
}

// Run sends events until ctx ends.
func (e *Events) Run(ctx context.Context) error {
	defer e.broadcaster.Shutdown()
	if e.client != nil {
		defer e.broadcaster.StartRecordingToSink(eventSink{ctx, e.client}).Stop()
	}
	<-ctx.Done()
	return nil
}

// Waiting reports that a pod waits for its devices, and why.
func (e *Events) Waiting(pod device.Pod, w device.Wait) {
	e.warn(reference(pod), waitingForDevices, "%s: %s", w.Reason, w.Message)
}

// GivenUp reports that a pod has waited for too long, and is evicted.
func (e *Events) GivenUp(pod device.Pod, w device.Wait, waited time.Duration) {
	e.warn(reference(pod), waitGivenUp, "evicting the pod, which has waited for its devices for %v (wait.giveUpAfter): %s: %s", waited.Round(time.Second), w.Reason, w.Message)
}

// Assigned reports which devices a pod's containers have.
func (e *Events) Assigned(pod device.Pod, all []device.Assignment) {
	var parts []string
	for _, as := range all {
		held := map[device.ResourceName][]device.ID{}
		for _, s := range as.Shares {
			held[s.Resource] = s.IDs
		}
		for _, r := range slices.Sorted(maps.Keys(held)) {
			parts = append(parts, fmt.Sprintf("container %s has %s", as.Container.Name, share(r, held[r])))
		}
	}
	e.recorder.Event(reference(pod), corev1.EventTypeNormal, devicesAssigned, device.ClipTo(strings.Join(parts, "; "), maxMessage))
}

// maxShared is the number of devices of one container and resource that an event names.
const maxShared = 8

// share returns a container's devices of one resource; of many devices, their number and the first few.
func share(r device.ResourceName, ids []device.ID) string {
	few := lists.Map(ids[:min(len(ids), maxShared)], device.QuoteID)
	if len(ids) > maxShared {
		return fmt.Sprintf("%d of %s [%s ...]", len(ids), r, strings.Join(few, " "))
	}
	return fmt.Sprintf("%s [%s]", r, strings.Join(few, " "))
}

// StartedWithoutDevices reports that a container runs without the devices that it requests.
func (e *Events) StartedWithoutDevices(pod device.Pod, container string) {
	e.warn(reference(pod), startedWithout, "container %s was started while devmgrd was away, or did not know the static pod, without the devices that it requests; restart the pod to inject them", container)
}

// Failed reports that devices of the pod, of one resource, have failed together.
func (e *Events) Failed(pod device.Pod, r device.ResourceName, ids []device.ID) {
	if len(ids) == 1 {
		e.warn(reference(pod), deviceFailed, "device %s of %s, which this pod has, is unhealthy, or its plugin has stopped listing it", device.QuoteID(ids[0]), r)
		return
	}
	e.warn(reference(pod), deviceFailed, "%d devices of %s, which this pod has, are unhealthy, or their plugin has stopped listing them: %s", len(ids), r, device.Abridge(ids))
}

// NotRedirected reports that a container runs with the kubelet's plugin directory.
func (e *Events) NotRedirected(pod device.Pod, container string) {
	e.warn(reference(pod), notRedirected, "container %s was started while devmgrd was away and mounts the kubelet's device plugin directory: a device plugin in it is registered with the kubelet, not with devmgrd; restart the pod", container)
}

// Contradiction reports that the plugins of a container's resources set one thing differently.
func (e *Events) Contradiction(pod device.Pod, container string, conflicts []string) {
	e.warn(reference(pod), contradiction, "container %s: %s; the first resource by name wins", container, strings.Join(conflicts, "; "))
}

// NotStarted reports that a container received its devices several times in a row, and never started.
func (e *Events) NotStarted(pod device.Pod, container string, times int, why string) {
	e.warn(reference(pod), notStarted, "container %s was given its devices %d times and has not started: %s", container, times, why)
}

// Contested reports on the Node that another writer keeps changing the Node's capacity of a resource, or that the kubelet's device manager has it too.
func (e *Events) Contested(r device.ResourceName) {
	e.warn(e.onNode(), contested,
		"another writer keeps changing the node's capacity of %s, or the kubelet's device manager has it too: while a device plugin is also registered with the kubelet, devices may be assigned twice; recreate the plugin's pod. The kubelet forgets it five minutes later", r)
}

// DeviceRefused reports on the Node that a device is listed as healthy and cannot be had.
func (e *Events) DeviceRefused(r device.ResourceName, id device.ID, why string) {
	e.warn(e.onNode(), deviceRefused, "device %s of %s is listed as healthy and refused again and again, while others are granted; it is out of service, and tried again at times: %s", device.QuoteID(id), r, why)
}

// InvalidCordons reports on the Node that its annotation has a mistake.
func (e *Events) InvalidCordons(mistake error) {
	e.warn(e.onNode(), invalidCordons, "annotation %s: %v", device.CordonAnnotation, mistake)
}

// NotSynchronized reports on the Node that the runtime cannot list its containers to devmgrd.
func (e *Events) NotSynchronized(why string) {
	e.warn(e.onNode(), notSynchronized, "containers that request devices cannot start: %s", why)
}

// NotAllowed reports what a rule for device plugins forbids: on a pod, or on the Node if the pod has no UID.
func (e *Events) NotAllowed(pod device.Pod, why string) {
	about := e.onNode()
	if pod.UID != "" {
		about = reference(pod)
	}
	e.warn(about, notAllowed, "%s", why)
}

func (e *Events) onNode() *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.node, UID: types.UID(e.node)} // as the kubelet does
}

func (e *Events) warn(about *corev1.ObjectReference, reason, format string, args ...any) {
	e.recorder.Event(about, corev1.EventTypeWarning, reason, device.ClipTo(fmt.Sprintf(format, args...), maxMessage))
}

func reference(pod device.Pod) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}
}

// eventSink writes events through the client. Its context cancels the calls in flight when devmgrd stops.
type eventSink struct {
	ctx    context.Context
	client rest.Interface
}

// Create is part of record.EventSink.
func (s eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	var made corev1.Event
	return &made, s.client.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(s.ctx).Into(&made)
}

// Update is part of record.EventSink.
func (s eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	var made corev1.Event
	return &made, s.client.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).Body(e).Do(s.ctx).Into(&made)
}

// Patch is part of record.EventSink.
func (s eventSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	var made corev1.Event
	return &made, s.client.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(data).Do(s.ctx).Into(&made)
}
