// Package nri is the runtime's door: it hears of containers through containerd's Node Resource Interface (NRI), answers
// what is to be injected into each, and refuses those that may not start yet.
//
// One container's creation:
//
//	CreateContainer   the runtime asks                                plugin.go
//	redirect          a plugin's mount of the kubelet's directory     redirect.go  pure
//	directory         the plugin pod's own, in its place              plugin.go
//	Claim             what the state file says of the container: a look-up  plugin.go
//	merge             its shares, first one wins, pod's own first     merge.go     pure
//	host              stat the device nodes and mount sources         host.go, looks.go
//	CDI               what its devices set wins over plain grants     cdi.go
//	arguments         $(NAME) of a plugin's variable                  args.go   pure
//	adjustment        in the runtime's words, with our stamp          adjust.go, draft.go, stamp.go
//	sizes             does it fit into the runtime's messages?        message.go
//	validation        all NRI plugins have answered: is it all there? validate.go  pure
//
// Then StartContainer clears the doubt about containers that were created and not started when the runtime listed them
// (docs/decisions/0020), StopContainer and RemoveContainer report a container's end, and RemovePodSandbox the end of all
// containers of the sandbox.
//
// Containers that were created while devmgrd was away and have the kubelet's plugin directory are found when the runtime lists its
// containers, and remembered until they end (stray.go).
//
// Local pods are those of which no API server tells: static pods, and all pods where there is none. Their demand stands in an
// annotation of the sandbox, which this room reads and tells the ledger of (local.go): as soon as the sandbox has been
// made, again with each question, and with all that have not stopped when the runtime connects. The end of a pod's last
// sandbox is the pod's end.
//
// Promises:
//
//   - A container that asks for devices gets an adjustment with all of them, or an error. Every doubt is an error: the
//     runtime then refuses the container and the kubelet asks again (after about 1 s, later every 10 to 15 s). A panic
//     in a handler is an error too: a dropped connection would let the container start without its devices.
//   - A container that asks for none passes at once.
//   - The hook makes no call to a plugin and touches no disk but a plugin pod's own directory, which is made for the pod's first
//     container, the stat of what it injects (and the directory that it makes where a mount's source is missing), and the CDI specifications where CDI devices stand beside plain ones. A
//     host that does not answer is a refusal of the containers that need the source, which the message names. The runtime calls all hooks of the node one after the other under one lock,
//     so it waits for an allocation in flight no longer than MaxWait, and for the one live read of a pod that nobody has
//     told of no longer than liveRead.
//   - No answer ends the connection. Messages have at most 4 MiB, so what is added to a container is counted while it is added
//     (draft.go), and every answer is looked at before it leaves (message.go). Both the arguments of a pod and a plugin's grant
//     may be long.
//   - Containers are refused in CreateContainer only. A refused sandbox leaks a record in several releases of containerd,
//     and the next start of containerd then fails (containerd issue 13609).
//
// What devmgrd cannot promise alone is that it is there. A runtime drops an NRI plugin that dies or is late, and goes on
// without it. Three things hold then, each where the others do not:
//
//   - As a validator (containerd 2.2 or later, CRI-O 1.34 or later) we are asked once more about the same container, and
//     no answer to that is a refusal. So the very container over which we died or were late is not made.
//   - Later ones are refused by the runtime's own validator if their pods say that they need devmgrd, which a policy in the
//     API server writes on those that ask for devices and on device plugins (packaging/containerd, packaging/kubernetes).
//   - Hung tells of a hook that does not end, for systemd's watchdog.
//
// We do not ask the runtime to keep a plugin that is late connected: then everything on the node would fail with it.
//
// The connection (connection.go) is made anew whenever it is lost, with a new stub each time, and as rarely as possible:
// a registering plugin waits for every container operation under way, and all later ones wait for it (containerd issue
// 14083). Each attempt has a connection of its own, which is closed when the attempt is over: a stub that is left behind must
// not come alive next to its successor. The state file is loaded before the first connection, so the first question finds them.
//
// A runtime whose containers do not fit into its own messages cannot take any NRI plugin up. Connections that end so are counted, and
// the cause is named (synchronizing.go).
//
// What it does not do: decide who gets what, change running containers (NRI cannot add devices to them), or evict.
package nri
