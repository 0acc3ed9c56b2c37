// Package nri connects devmgrd to the container runtime through the Node Resource Interface (NRI). It injects devices into
// containers, and refuses containers that may not start yet.
//
// The creation of one container:
//
//	CreateContainer   the runtime's call                              plugin.go
//	redirect          a plugin's mount of the kubelet's directory     redirect.go  pure
//	directory         the plugin pod's own, in its place              plugin.go
//	Claim             looks up the container's assignment             plugin.go
//	merge             its shares; the pod's settings win, then the first share  merge.go  pure
//	host              stat the device nodes and mount sources         host.go, hostchecks.go
//	CDI               CDI devices' settings win over plain grants     cdi.go
//	arguments         $(NAME) of a plugin's variable                  args.go   pure
//	adjustment        in the runtime's types, with devmgrd's stamp    adjust.go, adjustment.go, stamp.go
//	sizes             refuses what exceeds the runtime's messages     message.go
//	validation        checks the merged answer of all NRI plugins     validate.go  pure
//
// Then StartContainer settles containers that were created but not started when the runtime listed them
// (docs/decisions/0020), StopContainer and RemoveContainer report a container's end, and RemovePodSandbox the end of all
// containers of the sandbox.
//
// When the runtime lists its containers, the package finds those that were created while devmgrd was away and have the kubelet's
// plugin directory, and keeps them until they end (notredirected.go).
//
// Local pods are pods known from the runtime only: static pods, and all pods without an API server. Their demand is in an
// annotation of the sandbox. The package reads it and binds the pod in the allocator (local.go): when the sandbox is created,
// at each call about the pod, and for all running sandboxes when the runtime connects. A local pod ends with its last
// sandbox.
//
// Promises:
//
//   - A container that requests devices gets an adjustment with all of them, or an error. Every doubt is an error: the
//     runtime then refuses the container and the kubelet asks again (after about 1 s, later every 10 to 15 s). A panic
//     in a handler is an error too: a dropped connection would let the container start without its devices.
//   - A container that requests none passes at once.
//   - The hook makes no call to a plugin. It accesses the disk only to create a plugin pod's own directory for the pod's first
//     container, to stat the injected files (and create a missing mount source), and to read CDI specifications where a
//     container has CDI devices and plain ones. If a source on the host does not answer, the containers that need it are
//     refused, and the message names the source. The runtime calls all hooks of the node one after the other under one lock,
//     so the hook waits for an allocation in flight no longer than MaxWait, and for the one live read of an unknown pod no
//     longer than liveRead.
//   - No answer ends the connection. Messages have at most 4 MiB, so additions to a container are counted (adjustment.go), and
//     every answer is checked before it is sent (message.go). Both the arguments of a pod and a plugin's grant may be long.
//   - Containers are refused in CreateContainer only. A refused sandbox leaks a record in several releases of containerd,
//     and the next start of containerd then fails (containerd issue 13609).
//
// devmgrd alone cannot promise its own presence. A runtime drops an NRI plugin that dies or is late, and continues without it.
// Three mechanisms cover that, each where the others do not:
//
//   - The runtime calls devmgrd, as a validator, once more about the same container (containerd 2.2 or later, CRI-O 1.34 or
//     later), and a missing answer is a refusal. So a container over which devmgrd died or was late is not created.
//   - The runtime's own validator refuses later containers whose pods require devmgrd. A policy in the API server marks pods that
//     request devices, and device plugins (packaging/containerd, packaging/kubernetes).
//   - Hung reports a hook that does not end, for systemd's watchdog.
//
// devmgrd does not ask the runtime to keep a late plugin connected: then every operation on the node would fail with it.
//
// A lost connection (connection.go) is replaced, with a new stub each time, and as rarely as possible: a registering plugin
// waits for every container operation under way, and all later operations wait for it (containerd issue 14083). Each attempt
// has its own connection, which is closed after the attempt: an abandoned stub must not become active next to its successor.
// The state file is loaded before the first connection, so the first call finds all assignments.
//
// A runtime whose containers do not fit into its own messages cannot accept any NRI plugin. The package counts connections that
// end so, and names the cause (synchronizing.go).
//
// The package does not assign devices, change running containers (NRI cannot add devices to them), or evict pods.
package nri
