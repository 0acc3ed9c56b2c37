package device

import (
	"slices"
	"strings"
)

// A Reason is the keyword for why a container waits or was refused: the same in log, event, metric and command line. Explain returns
// its meaning.
type Reason string

// The reasons, as in the table below: those of the plugin, the devices, the claims, the allocation, and the container.
const (
	PluginMissing          Reason = "PluginMissing"
	PluginStale            Reason = "PluginStale"
	PluginSlow             Reason = "PluginSlow"
	PluginError            Reason = "PluginError"
	PluginNotAllowed       Reason = "PluginNotAllowed"
	PluginDirectoryMissing Reason = "PluginDirectoryMissing"

	NotEnoughDevices   Reason = "NotEnoughDevices"
	DeviceUnhealthy    Reason = "DeviceUnhealthy"
	DeviceBusy         Reason = "DeviceBusy"
	TopologyMismatch   Reason = "TopologyMismatch"
	NoSuchDevice       Reason = "NoSuchDevice"
	DevicesUnknown     Reason = "DevicesUnknown"
	DeviceInUse        Reason = "DeviceInUse"
	DeviceGone         Reason = "DeviceGone"
	DeviceCordoned     Reason = "DeviceCordoned"
	AssignmentConflict Reason = "AssignmentConflict"

	ClaimUnknown  Reason = "ClaimUnknown"
	NoClaim       Reason = "NoClaim"
	ClaimMismatch Reason = "ClaimMismatch"

	Allocating       Reason = "Allocating"
	Preparing        Reason = "Preparing"
	PreStartFailed   Reason = "PreStartFailed"
	StoreUnavailable Reason = "StoreUnavailable"

	HostDeviceMissing Reason = "HostDeviceMissing"
	Overruled         Reason = "Overruled"
	ContainerTooLarge Reason = "ContainerTooLarge"
	PodTooLarge       Reason = "PodTooLarge"
	UnknownPod        Reason = "UnknownPod"
)

// An Explanation is the text about a Reason that operators read. Facts of the single case, such as counts and names, are in the Wait's
// message.
type Explanation struct {
	Reason  Reason
	Meaning string // Markdown
	Remedy  string // Markdown
	Section string // of the documents, for more: a file in docs and its heading

	ends string // with %s for the resources
}

// Ends returns the event that ends a wait for resources.
func (e Explanation) Ends(resources string) string {
	return strings.ReplaceAll(e.ends, "%s", resources)
}

// Explain returns the explanation of a reason; an empty one of a word that is none.
func Explain(r Reason) Explanation {
	for _, e := range explanations {
		if e.Reason == r {
			return e
		}
	}
	return Explanation{Reason: r}
}

// Explanations returns the explanations of all reasons.
func Explanations() []Explanation { return slices.Clone(explanations) }

// explanations is the table of reasons: for devmgrd explain and for docs/waiting.md.
var explanations = []Explanation{
	{
		Reason:  PluginMissing,
		Meaning: "no plugin has registered the resource, or it has been away for longer than the grace period, or it has not listed its devices yet",
		Remedy:  "see [A plugin is missing](#a-plugin-is-missing)",
		Section: "runbook.md#devmgrdplugindown",
		ends:    "the device plugin of %s registers and lists its devices",
	},
	{
		Reason:  PluginStale,
		Meaning: "the plugin disconnected, or returned without its devices, within the grace period",
		Remedy:  "wait; then read the plugin's log",
		Section: "runbook.md#devmgrdplugindown",
		ends:    "the device plugin of %s returns; devmgrd dials it until then",
	},
	{
		Reason:  PluginSlow,
		Meaning: "no answer within `plugins.allocateTimeout`, or the plugin was busy with other calls for that long",
		Remedy:  "check the plugin; raise the timeout if it needs more",
		Section: "runbook.md#devmgrdpodswaiting",
		ends:    "the device plugin of %s answers: devmgrd asks it again after a pause, and at once when an absent plugin returns",
	},
	{
		Reason:  PluginError,
		Meaning: "the plugin refused, its answer is unusable, or it grants too much or features beyond this runtime",
		Remedy:  "the message quotes the plugin, or names the wrong field",
		Section: "runbook.md#devmgrdpodswaiting",
		ends:    "the device plugin of %s answers: devmgrd asks it again after a pause, and at once when an absent plugin returns",
	},
	{
		Reason:  PluginNotAllowed,
		Meaning: "a [rule](configuration.md#rules-for-device-plugins) does not allow the plugin's grant; the message names the rule",
		Remedy:  "if the plugin is legitimate, add the message's subject to the rule, and restart devmgrd; `devmgrd rules check` shows the remaining violations",
		Section: "runbook.md#devmgrdpluginnotallowed",
		ends:    "the rule in the message allows the grant, or the device plugin of %s grants something else: devmgrd asks it again after a pause",
	},
	{
		Reason:  PluginDirectoryMissing,
		Meaning: "the pod is a device plugin's, and devmgrd could not make its registration directory; the message has the error",
		Remedy:  "check whether the file system of `runDir` is full or read-only",
		Section: "configuration.md#the-node",
		ends:    "the directory in runDir can be created: devmgrd's log has the error",
	},
	{
		Reason:  NotEnoughDevices,
		Meaning: "too few devices are free; the message counts the cordoned and withheld ones",
		Remedy:  "wait for other pods to end. Devices may have failed or been cordoned after binding, or another program changed the Node's capacity",
		Section: "runbook.md#devmgrdpodsdonotfit",
		ends:    "a device of %s is released by another pod, uncordoned, or newly listed",
	},
	{
		Reason:  DeviceUnhealthy,
		Meaning: "too few healthy devices are free, or the pod's own device is unhealthy or unlisted",
		Remedy:  "check the plugin and the device",
		Section: "runbook.md#devmgrddevicesunhealthy",
		ends:    "a device of %s becomes healthy, is listed again, or is released by another pod",
	},
	{
		Reason:  DeviceBusy,
		Meaning: "devices of an ended pod are not proved free: the message names the process, network namespace, search or command in the way",
		Remedy:  "end what the message names, or return the devices to service as they are: `devmgrd uncordon`",
		Section: "runbook.md#devmgrddevicesbusy",
		ends:    "the devices of %s that the message is about are proved free: what it names has ended, or has succeeded",
	},
	{
		Reason:  TopologyMismatch,
		Meaning: "enough devices are free, but not as near each other as `topology.policy` demands",
		Remedy:  "wait for other pods: the message counts free devices by NUMA node. If the node can never match: ask for fewer, or choose another policy",
		Section: "runbook.md#devmgrdpodsdonotfit",
		ends:    "devices of %s that are near each other are released, or topology.policy is relaxed",
	},
	{
		Reason:  NoSuchDevice,
		Meaning: "too few of the devices that the pod's annotation `devmgrd.io/devices` selects are free, or the annotation has a mistake",
		Remedy:  "correct the annotation, or wait for other pods to end: the message counts the devices",
		Section: "configuration.md#a-pods-own-choice",
		ends:    "a device of %s that the pod's annotation devmgrd.io/devices selects is released, uncordoned, healthy or listed again",
	},
	{
		Reason:  DevicesUnknown,
		Meaning: "containers have devices that only a lost state file named, or pods have some by the kubelet: devmgrd assigns none until they end",
		Remedy:  "the log names them (`container runs with unknown devices`), or `devmgrd status`: end their pods, or wait; delete the pod where the message says so",
		Section: "runbook.md#devmgrdstatefiledamaged",
		ends:    "the containers with unknown devices of %s end: devmgrd's log names them, or devmgrd status",
	},
	{
		Reason:  DeviceInUse,
		Meaning: "the scheduler has chosen a device that another pod still has, for instance after a force deletion, or the kubelet has assigned it",
		Remedy:  "wait for the pod in the message to end",
		Section: "dra.md#a-pod-that-waits",
		ends:    "the pod in the message has released the device of %s",
	},
	{
		Reason:  DeviceGone,
		Meaning: "the scheduler has chosen a device that its plugin no longer lists",
		Remedy:  "read the plugin's log. If the device does not come back, delete the pod",
		Section: "dra.md#a-pod-that-waits",
		ends:    "the device plugin of %s lists the device again",
	},
	{
		Reason:  DeviceCordoned,
		Meaning: "the scheduler has chosen a device before it saw its cordon",
		Remedy:  "`devmgrd uncordon`, or delete the pod",
		Section: "dra.md#a-pod-that-waits",
		ends:    "the device of %s is uncordoned, or its suspension ends",
	},
	{
		Reason:  AssignmentConflict,
		Meaning: "the state file assigns one device to two pods, because a commit that failed was written all the same",
		Remedy:  "nothing: the runtime's report resolves it. `devmgrd store verify` names the pods. If it stays, the runtime is away (`/readyz`)",
		Section: "upgrade.md#the-state-file",
		ends:    "the container runtime reports which devices its containers have",
	},
	{
		Reason:  ClaimUnknown,
		Meaning: "the pod has a ResourceClaim that devmgrd has not read yet; the message has the cause",
		Remedy:  "wait; if it stays, check devmgrd's connection to the API server, and its right to get resourceclaims",
		Section: "dra.md#a-pod-that-waits",
		ends:    "devmgrd has read the pod's claims",
	},
	{
		Reason:  NoClaim,
		Meaning: "the container requests a resource that this node offers through [claims](dra.md#a-pod-that-waits) and has none, or one with `adminAccess`",
		Remedy:  "have the scheduler bind the pod; it needs the DeviceClass of `devmgrd deviceclass`",
		Section: "dra.md#a-pod-that-waits",
		ends:    "never: the pod has to be created again",
	},
	{
		Reason:  ClaimMismatch,
		Meaning: "what the kubelet has the runtime give to the container by its claims is not what devmgrd has granted; the message says what differs",
		Remedy:  "compare the pod's status with its ResourceClaims; where CDI is off in the runtime, switch it on; after an upgrade of devmgrd restart the kubelet",
		Section: "dra.md#a-pod-that-waits",
		ends:    "the kubelet and the container runtime give the container what has been granted",
	},
	{
		Reason:  Allocating,
		Meaning: "devmgrd is waiting for a plugin, a claim, the Node or, after its start, the runtime",
		Remedy:  "nothing; if it stays, the plugin is slow, or the API server or runtime is away (`/readyz`)",
		Section: "runbook.md#devmgrdruntimenotconnected",
		ends:    "the device plugins or the API server answer; after a start of devmgrd: the container runtime reports its containers",
	},
	{
		Reason:  Preparing,
		Meaning: "PreStartContainer is under way",
		Remedy:  "nothing",
		Section: "runbook.md#devmgrdpodswaiting",
		ends:    "PreStartContainer of the device plugin of %s succeeds",
	},
	{
		Reason:  PreStartFailed,
		Meaning: "the plugin failed to prepare the devices, or is away when needed for that",
		Remedy:  "the message quotes the plugin; devmgrd tries again",
		Section: "runbook.md#devmgrdcontainersrefused",
		ends:    "PreStartContainer of the device plugin of %s succeeds",
	},
	{
		Reason:  StoreUnavailable,
		Meaning: "devmgrd could not write the assignment",
		Remedy:  "check whether the disk is full, or [the state file is gone](upgrade.md#the-state-file-is-gone)",
		Section: "runbook.md#devmgrdstoreunavailable",
		ends:    "the state file can be written: devmgrd tries again after a pause",
	},
	{
		Reason:  HostDeviceMissing,
		Meaning: "a device node, mount source or CDI device of the grant is missing on the host, or its file system does not answer",
		Remedy:  "Check the driver. devmgrd asks the plugin again within 30 s; a pod that has not run gets other devices if available",
		Section: "runbook.md#devmgrdcontainersrefused",
		ends:    "the host has the devices and files that the device plugin of %s granted: is the driver loaded? devmgrd asks the plugin again after a pause",
	},
	{
		Reason:  Overruled,
		Meaning: "another NRI plugin of this node removes or replaces devmgrd's changes to the container",
		Remedy:  "the message names it. Remove it, or have the runtime call it before devmgrd (`nri.index`)",
		Section: "runbook.md#devmgrdcontainersrefused",
		ends:    "the other NRI plugin that the message names leaves the container's devices alone",
	},
	{
		Reason:  ContainerTooLarge,
		Meaning: "the container with its devices exceeds one message between runtime and NRI plugins; the message names the field",
		Remedy:  "have its owner shorten arguments, variables or annotations, or refer less often to a plugin's variable as `$(NAME)`",
		Section: "waiting.md#sizes",
		ends:    "the pod is replaced by one with shorter arguments, variables or annotations",
	},
	{
		Reason:  PodTooLarge,
		Meaning: "the pod requests more resources than a pod may, or the pods of the node do together; the message names the limit",
		Remedy:  "have its owner split the pod, or remove pods that are bound to the node without the scheduler",
		Section: "waiting.md#sizes",
		ends:    "the pod is replaced by a smaller one, or others end",
	},
	{
		Reason:  UnknownPod,
		Meaning: "devmgrd has not received the pod and cannot read it, or cannot read its annotation `devmgrd.io/resources`",
		Remedy:  "check the API server (`/readyz`), `nodeName`, and the [annotation's form](differences.md#static-pods-and-nodes-without-kubernetes)",
		Section: "runbook.md#devmgrdcontainersrefused",
		ends:    "the API server answers, or the pod is replaced by one with a valid annotation devmgrd.io/resources",
	},
}
