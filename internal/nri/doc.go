// Package nri is devmgrd's plugin for the Node Resource Interface (NRI) of the container runtime: it injects devices into
// containers, and refuses the creation of containers that have to wait.
//
// The creation of one container:
//
//	CreateContainer   the runtime calls                                   createcontainer.go
//	redirect          a plugin's mount of the kubelet's directory         redirect.go
//	directory         the plugin pod's own, in its place                  redirect.go
//	demand            of a local pod: its sandbox's annotation            local.go
//	RuntimeCreating   the container's assignment: a look-up               createcontainer.go
//	claims            what its claims' CDI files have added already       claims.go
//	rules             may the plugin grant this?                          permit.go
//	merge             its shares; the first wins, the pod's own before    merge.go         pure
//	arguments         $(NAME) of a plugin's variable                      args.go          pure
//	CDI               what CDI devices set wins over plain grants         cdi.go
//	host              stat the device nodes and mount sources             host.go, hostchecks.go
//	adjustment        the answer, with the assignment annotation          adjust.go, stamp.go
//	sizes             does it fit into the runtime's messages?            message.go
//	validation        after all NRI plugins: is everything still there?   validate.go
//
// The plugin itself, with the interfaces that it calls, is in plugin.go; the other events of the runtime are in events.go, those of
// sandboxes in local.go. The other files:
//
//	allowances.go      for how long the pods of a namespace may delay hooks
//	alone.go           what a claim's CDI file can say in place of the hook
//	attempts.go        containers that got their devices and never started
//	cgroups.go         which pods and containers have processes
//	features.go        what the runtime can do, by its name and version
//	hooks.go           hooks under way, and those that hang
//	hostnodes.go       the host's device nodes of grants
//	logs.go            the log of the NRI library
//	metrics.go         the metrics
//	presence.go        which sandboxes there are
//	probe.go           how the runtime greets an NRI plugin, for "devmgrd check"
//
// After CreateContainer, StartContainer ends the doubt about containers that the runtime listed as created and not started
// (docs/decisions/0020), StopContainer and RemoveContainer report the end of a container, and RemovePodSandbox the end of all
// containers of a sandbox.
//
// When the runtime lists its containers, the package finds those that have the kubelet's plugin directory, because they were
// created while devmgrd was down, and remembers them until they end (notredirected.go).
//
// A container that was created before devmgrd came to the node has the devices that the kubelet's checkpoint names for it (Kubelets), as if its
// annotation said so: perhaps they were not imported.
//
// # The redirect
//
// The answer replaces a plugin container's mounts, at the same place and with the same options:
//
//	of the kubelet's plugin directory  the pod's own directory. Before the pod's first container that mounts it for writing: the common one
//	of kubelet.sock in it              the same file there
//	of a parent directory              stays; a mount is added below it, unless the parent is shared with the host, which the log says
//	of plugins_registry                likewise, if the container also mounts the plugin directory, or the pod requests it: CSI drivers
//	                                   keep the kubelet's
//
// In a pod with a user namespace of its own the owners are mapped as in the former mount. The redirect is for new containers, of static pods too, and never for
// existing ones.
//
// # Local pods
//
// The package binds a pod that the API server does not know (local.go) when its sandbox is created, again with each container, and for all sandboxes that have
// not stopped when the runtime connects. The runtime also lists stopped sandboxes, which differ in having no process and no container.
// The end of a pod's last sandbox is the end of the pod. A static pod without the annotation and without a mirror pod that can be read
// starts without devices: it may be the API server itself.
//
// # The answer
//
// It has what the kubelet would derive from the same grants. Variables and mounts of the pod's own win over a plugin's, and of several resources the first by
// name; contradictions are reported (event PluginsContradict). Links are resolved, directories of devices walked, and a new grant's missing mount source is made as a
// directory. test/e2e plays the same grants through a kubelet with its own device manager and through devmgrd, and compares the containers
// (TestInjection_SamePodAndPlugin_SameAsKubelet); docs/differences.md has what remains.
//
// The assignment annotation names the container's devices (stamp.go).
//
// # Promises
//
//   - A container that asks for devices gets all of them, or an error. Every doubt is an error: the runtime then refuses the
//     container, and the kubelet retries after about 1 s, later every 10 to 15 s. A panic in a hook is an error too: a
//     dropped connection would let the container start without its devices.
//   - A container that asks for no device passes at once if its pod is known; an unknown pod is read from the API server before.
//   - The hook calls no plugin. CreateContainer's disk accesses are: a plugin pod's own directory, made for the pod's first container; the
//     stat of what it injects, and the directory that it makes for a missing mount source; and the CDI specifications, if
//     an answer has CDI devices and plain ones, a claim has a plugin's CDI devices, or CRI-O could not create the former container with CDI devices. If the host does not answer, the containers that need the source are
//     refused, with the path in the message.
//   - The runtime calls all hooks of a node one after the other under one lock. So the hook waits for an allocation in
//     progress at most MaxWait, and for the one read of an unknown pod at most liveRead. As a whole the hook takes 1 s at most, or three quarters of the runtime's
//     timeout if that is less. Each source on the host has one check under way, in a goroutine of its own, which later
//     requests for the source join: a hung file system costs only the containers that need it.
//   - A container counts as living from the look-up on, in the same critical section of the allocator: its devices cannot be released before its start.
//   - Synchronize reads the kubelet's checkpoint if it has changed, hands the runtime's lists over and returns. Until the allocator has compared them with the state file, a container that requests devices
//     waits like one whose allocation is in flight.
//   - Nothing of a container's environment is logged.
//   - No answer ends the connection. Messages have at most 4 MiB, so the package counts what it adds to a container while it
//     adds it (adjust.go), and checks every answer before it leaves (message.go). Arguments of a pod and grants of a
//     plugin may both be long.
//   - Containers are refused, and sandboxes never: a refused sandbox leaks a record in several releases of containerd,
//     and the next start of containerd then fails (containerd issue 13609). Apart from CreateContainer and its validation, only the start of a container can be
//     refused: its devices have been released (docs/decisions/0020) or are another pod's, or the allocator has not said in time that they are not.
//
// # While devmgrd is away
//
// devmgrd cannot promise that it is always there. A runtime drops an NRI plugin that dies or is late, and continues without
// it. Three mechanisms cover that:
//
//   - As a validator (containerd 2.2 or later, CRI-O 1.34 or later) devmgrd is called once more about the same container, and
//     a missing answer is a refusal. So the container during whose creation devmgrd died or was late is not created.
//   - The runtime's own validator refuses later containers if their pods require devmgrd. An admission policy adds that
//     requirement to pods that ask for devices and to device plugins (packaging/containerd, packaging/kubernetes).
//   - Hung reports a hook that does not end, for systemd's watchdog.
//
// devmgrd does not ask the runtime to keep a late plugin connected: then everything on the node would fail with it.
//
// # The connection
//
// The connection (connection.go) is reopened when it is lost, with a new stub each time, and as rarely as possible: a
// registering plugin waits for every container operation in progress, and all later ones wait for it (containerd issue
// 14083). Each attempt has a connection of its own, which is closed when the attempt ends, so that its stub
// cannot become active next to its successor. The start of a stub ends with its connection (starting.go). The state file is loaded before the first connection.
//
// A runtime whose containers do not fit into its own messages cannot register any NRI plugin. The package counts connections
// that end so, and names the cause (synchronizing.go).
//
// The package does not choose devices, change running containers (NRI cannot add devices to them), or evict pods.
package nri
