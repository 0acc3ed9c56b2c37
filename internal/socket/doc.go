// Package socket puts unix sockets where others look for them. Several servers of the daemon need that, so it is a base
// room, beside the words. It knows no protocol and no configuration.
//
//	CheckPath   whether the kernel takes a path
//	Vacant      whether a path may be taken, or who has it
//	Listen      a socket that is seen only once it listens
//	Same        whether a file is still the one that it was
//	Peer        who is at the other end
//	MakeDir     a directory, whatever the umask is
//
// Whoever wants a socket asks in that order. Nothing holds a path between Vacant and Listen: two who start in the same
// moment may both find it vacant. What keeps two daemons apart is the lock of the state file.
//
// Errors name the path and what can be done about it there. What the caller's configuration has to offer besides is the
// caller's to add.
package socket
