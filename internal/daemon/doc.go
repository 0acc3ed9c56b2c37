// Package daemon is what "devmgrd run" runs: it connects the other packages and controls their lifetime.
//
// It has no behaviour of its own towards plugins, pods and the runtime. It is the only package that knows which package
// implements which interface (daemon.go). Around them it has what every daemon needs:
//
//	group.go             runs the components, and ends them in reverse order
//	log.go               a log that never blocks its writers
//	web.go, hosts.go     metrics, health checks and the status page over HTTP, for known host names
//	listen.go            their listener, with limits for each client
//	systemd.go           readiness and watchdog
//	socketactivation.go  the registration socket that systemd holds
//	notifier.go          events and evictions as health.* configures them
package daemon
