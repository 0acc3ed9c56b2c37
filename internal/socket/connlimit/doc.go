// Package connlimit bounds the connections that a server of the daemon holds, in sum and for each client, so that no client
// takes the descriptors or the turn of another one. It is a base package: several servers need it. It knows no protocol.
//
//	limiter.go   Limiter, which serves clients in turn
//	listener.go  Listener and Conn, which a server uses in place of its own
//	unix.go      UnixClient, the pod or process at the other end of a unix socket
//	tcp.go       TCPClient, the local user or the address at the other end of a TCP connection
//	diag.go      the kernel's answer to who owns a local TCP socket
//
// A connection beyond a limit waits in line: it stays accepted and unread until one of its client's connections, or any
// connection where the sum is reached, is closed. A client with fewer connections comes before a client with more. The line
// has limits of its own. A connection beyond those is closed at once.
//
// The server has to close connections that do nothing; a Limiter closes none that it has handed over.
package connlimit
