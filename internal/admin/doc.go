// Package admin serves the operator's API: the state of the node, why a pod waits, and cordons of single devices. It speaks
// devmgrd.admin.v1 (api/devmgrd/admin/v1) on a unix socket that only root can open.
//
//	server.go    the socket, and its clients' rights
//	service.go   the calls that read, also for the status page
//	operate.go   cordon, uncordon, drain, forget
//	operator.go  which process gave a command, and the record of it
//	history.go   former assignments, and the operators' actions
//	convert.go   devmgrd's values into messages: pure
//	explain.go   why a pod waits, what would end that, and how a pod ended: pure
//
// Promises:
//
//   - It keeps no state: each answer is read from the other packages after the request. Explain asks the API server about a pod
//     that they do not know.
//   - A change is durable before its call returns without an error. After an error of the state file the change may be in the file, or in part in force, and the answer says so.
//   - An error names what is unknown or wrong, and how to find the right value.
//   - No container needs this package to start. A socket that cannot be bound is retried and logged.
//   - Each command that changes something or copies a file is recorded, done or refused, with the process that gave it as the
//     kernel names it. If the history cannot be written, the command is carried out all the same, and the log has it.
//
// Run owns all goroutines: gRPC's.
package admin
