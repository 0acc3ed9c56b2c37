// Package daemon is what "devmgrd run" runs: it connects the other packages and controls their lifetime.
//
// It has no behaviour of its own towards plugins and the runtime, and towards pods only that of health.* and wait.giveUpAfter (notifier.go), and what
// the kubelet has assigned (kubelet.go). It is the only package that knows which package
// implements which interface. Around them it has what every daemon needs:
//
//	daemon.go        what devmgrd consists of, as a list
//	parts.go         runs the parts, and ends them in reverse order
//	state.go         the state file, the history, and what ends the start
//	core.go          plugins, assignments, and what keeps devices from pods
//	cluster.go       pods and the Node; nothing with kubernetes.mode: none
//	dra.go           claims and ResourceSlices
//	kubelet.go       what the kubelet's own device manager still has
//	surfaces.go      operators, PodResources, the runtime, metrics
//	ordering.go      the order in which devices are chosen
//	reclaim.go       proofs that devices are free; the process that finds openers
//	notifier.go      events and evictions as health.* configures them
//	deviceinfo.go    a metric for each device
//	log.go           a log that never blocks its writers
//	web.go, hosts.go metrics, health checks and the status page over HTTP, for known host names
//	listen.go        their listener, with limits for each client
//	systemd.go       readiness, watchdog, and the registration socket that systemd holds
package daemon
