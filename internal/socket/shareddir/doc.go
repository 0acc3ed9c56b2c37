// Package shareddir works in directories that other processes write: the plugins' socket directory, the plugin registry,
// the kubelet's pod-resources directory. It is a base package, next to socket, which listens there.
//
//	Dir     an open directory: names are looked up, renamed, linked and removed relative to its descriptor
//	Entry   what has been opened below a directory: dialled, read and chmodded through its descriptor
//	Make    a directory, whatever the umask is
//
// A process that writes in such a directory, mostly a plugin in a container, may exchange any name for a link, a FIFO or a
// directory between two system calls of devmgrd. Four rules follow, and test/rules checks that the packages which work there
// leave paths to this one:
//
//   - A name is opened once, without following links (O_PATH|O_NOFOLLOW), and the descriptor is checked. What follows goes
//     through the descriptor.
//   - Only a regular file is opened for reading, without waiting for a writer, and only as many bytes are read as the caller
//     allows.
//   - A new file is a draft first, under a random name, and renamed to its name when it is complete. Drafts of a crashed process
//     are removed by RemoveDrafts. A draft is not made in a private directory: one inside the shared directory belongs to uid 0,
//     as a plugin's process mostly does, and one outside may be on another mount, where rename fails. So a draft counts for
//     nothing until its descriptor has been checked.
//   - What is at devmgrd's own names is devmgrd's to replace. A directory there, which rename cannot replace, is renamed aside
//     and removed within a limit.
//
// In the tests of registry, checkpoint and podresources, processes with a container's rights attack such directories.
//
// Nothing here knows a protocol, waits, or logs.
package shareddir
