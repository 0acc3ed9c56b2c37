// Package socket listens on unix sockets where other processes look for them. Several servers of the daemon need that, so it
// is a base package, next to shareddir, through which it works: the directory of a socket is one that other processes may
// write. It knows no protocol and no configuration.
//
//	CheckPath   whether the kernel takes a path
//	Vacant      whether a name may be taken, or which process has it
//	Listen      a socket that is seen only once it listens: made as a draft, which counts when the kernel says, of a
//	            connection to the opened file, that devmgrd itself listens there
//	ListenPath  the same where no other user writes: a file that is no socket stays. ListenPathFrom creates it elsewhere first
//	Dial        the socket at a path, never at the end of a link
//	Peer        which process is at the other end
//
// A server that wants a socket asks in that order. Nothing holds a name between Vacant and Listen: two servers that start in
// the same moment may both find it vacant. What keeps two daemons apart is the lock of the state file.
//
// Errors name the path and what can be done about it there. What the caller's configuration has to offer besides is the
// caller's to add.
package socket
