// Package socket listens on unix sockets in directories of other processes. Several servers of the daemon need it, so it is a
// base package, next to package shareddir, which it uses because other processes may write in a socket's directory. It knows
// no protocol and no configuration.
//
//	CheckPath   whether a path is short enough for the kernel
//	Vacant      whether a name may be taken, or which process has it
//	Listen      a socket that appears only once it listens
//	ListenPath  the same where no other user writes: a file that is no socket stays
//	Dial        the socket at a path, never at the end of a link
//	Peer        which process is at the other end
//
// A server calls them in that order. No call reserves a name between Vacant and Listen: two servers that start at the same
// moment may both find it vacant. The lock of the state file excludes a second daemon.
//
// Errors name the path and a remedy. The caller adds remedies in its configuration.
package socket
