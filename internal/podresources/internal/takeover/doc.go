// Package takeover keeps devmgrd's socket at the kubelet's PodResources path, where agents look for it, and the kubelet's socket
// next to it. It answers no request: podresources serves on its listener.
//
//	takeover.go   Listen and Run: bind the socket; watch the directory and look again after each change
//	names.go      the steps that take the path, and those that return it
//	files.go      one name: whose file it is, and changes of it
//	listener.go   one listener for the server, even if the socket has to be bound again
//
// # Three names
//
// All are in one directory:
//
//	kubelet.sock       the path. A starting kubelet removes the file there and renames a socket of its own to it. It never
//	                   looks at the name again, and leaves its socket behind when it dies
//	.devmgrd.sock      devmgrd's socket, under a name that no kubelet touches. The file at the path is a hard link of it, so
//	                   one listener serves across all changes of the path
//	kubelet-own.sock   aside: the kubelet's socket
//
// A socket's owner is known by the socket's inode. A socket without a listener is dead: it belongs to an ended kubelet, or to a
// devmgrd that was killed. devmgrd treats a file that is not a socket as a dead socket, and logs it.
//
// # Promises
//
//   - A kubelet that listens can be reached at all times, at the path or aside: it may start between any two system calls of
//     devmgrd. So devmgrd never removes a file at the path and never renames another over it. It moves the file aside in one
//     step and looks at it there. Its own socket comes to the path by a link, which fails if another file has come meanwhile.
//   - A dead socket never replaces a live one.
//   - A crash between any two steps leaves names that the next look repairs, devmgrd's or a starting kubelet's. No state is kept.
//   - A clean stop returns the path to the kubelet, or leaves it empty if no kubelet listens.
//   - Connections outlive all changes of the path. The socket has the mode of the kubelet's, at most 0770.
//   - Agents may write in the directory: every access goes through shareddir, and follows no links.
//
// # Limits
//
//   - Between a kubelet's start and devmgrd's look, clients that dial reach the kubelet. While devmgrd is away, they are refused.
//   - On a file system without an atomic exchange of names, a kubelet that starts during a swap is out of reach for three steps.
//   - Listen fails while another devmgrd listens under the hidden name.
//   - Log messages that another process can cause: 5, then one a minute. Takings of the path: 200, then 10 a second.
//
// # Goroutines and locks
//
// The only goroutine is dirwatch's; Run works in its caller's. The listener has the only lock, which is never held across Accept.
package takeover
