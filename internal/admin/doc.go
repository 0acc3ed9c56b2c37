// Package admin serves operators: it reports devmgrd's state, explains why a pod waits, and takes single devices out of
// service. It serves devmgrd.admin.v1 (api/devmgrd/admin/v1) on a unix socket for root.
//
//	server.go    the socket, and its access rights
//	service.go   the calls
//	reader.go    the read-only calls, for this process
//	operator.go  the process behind a command, and the record of it
//	history.go   past assignments and operators' commands
//	convert.go   conversion into the protocol's types: pure
//	explain.go   why a pod waits, what would end the wait, and how a pod ended: pure
//
// Promises:
//
//   - The package has no state of its own: it reads each answer from the other components when the call arrives. For a pod
//     that they do not know, Explain asks the API server.
//   - A change is durable before its call returns, or has not happened.
//   - Errors name the unknown or wrong value, and the way to find the right one.
//   - No container needs this package to start. Run tries an unavailable socket again, and logs the error.
//   - The history records each command that changes something or copies a file, done or refused, with its process as the kernel
//     names it. A history that cannot be written holds up no command: the log has the record.
//
// Run owns all goroutines: gRPC's.
package admin
