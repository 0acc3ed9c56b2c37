// Package admin answers those who look after the node: what devmgrd knows, and why a pod waits; and takes single devices out
// of service for them. It speaks devmgrd.admin.v1 (api/devmgrd/admin/v1) on a unix socket that is root's.
//
//	server.go    the socket, and who may use it
//	service.go   the calls
//	reader.go    those that change nothing, for this process itself
//	operator.go  which process gave a command, and the record of it
//	history.go   who had what before, and what operators did
//	convert.go   our words into the protocol's: pure
//	explain.go   why a pod waits, what would end that, and how a pod ended: pure
//
// Promises:
//
//   - It knows nothing by itself: each answer is read from the rooms that know, and is as new as its question. Of a pod
//     that they do not know, Explain asks the API server.
//   - What a call changes is durable before the call returns, or has not happened.
//   - Errors say what is unknown or wrong, and how to find out what is right.
//   - Nothing here is needed for a container to start. A socket that cannot be had is tried again, and told.
//   - Each command that changes something or copies a file is recorded, done or refused, with the process that gave it as the
//     kernel names it. A history that cannot be written keeps no command from being carried out: the log has it.
//
// Run owns all goroutines: gRPC's.
package admin
