// Package openers finds the processes that hold devices: by a descriptor, or by memory that is mapped from a device. devmgrd
// assigns a device of an ended pod to the next pod only if no other process holds it.
//
// The package runs in a process of its own with the capabilities that the daemon does without, and answers on a unix socket. It
// knows no settings and no resources, and of pods only which cgroup is whose.
//
//	openers.go       the values
//	finder.go        one scan: its workers, and the processes that block them
//	record.go        what a scan has found
//	worker.go        one process after the other
//	descriptors.go   a process's descriptors, and its threads' own tables of them
//	mappings.go      a process's mapped files
//	describe.go      a process's names
//	syscalls.go      system calls without copies of their arguments
//	capabilities.go  missing capabilities
//	server.go        Serve
//	client.go        Client
//
// Processes: all of the PID namespace of the given /proc, those of nested namespaces included. When the list is finished, the scan
// looks at processes that have started meanwhile, in up to three more rounds.
//
// Devices: the scan compares type and number of the file at the end of each link in /proc/PID/fd, and never its name, which the
// mount namespace of a container may put anywhere. A thread may have a table of descriptors that other threads do not share; kcmp(2)
// shows which threads do. Of /proc/PID/maps, the scan looks at each file once, through /proc/PID/map_files. If the first thread of
// a process has ended, it goes through another one.
//
// A scan without a result for all processes says so. It fails where it can see nothing, as without a capability. A single process
// that it cannot see into is an Unknown:
//
//   - a process that is exiting: the kernel closes files that /proc does not show any longer, and a driver may take long for it;
//   - a process that keeps changing its memory, or that a security module protects;
//   - a process whose memory a driver has locked, so that a thread of the scan waits for it. The scan goes on after 3 s, and sooner after each
//     such process: any number of pods may lock theirs in turn. Later scans do not wait, and name the process until that thread is free;
//   - a process whose pod has used up its share, or takes twice as long.
//
// The first two kinds are looked at again at the end of the scan, which waits up to 1 s for those that exit: their end is an event of their
// pidfd. Most Unknowns are gone by then, such as the children of a build.
//
// Each pod has a share of a scan, and so has each process outside of pods: 20 000 files, 16 lines of maps counting as one. One Unknown
// stands for its pod, whose further processes the scan leaves out: a pod cannot make the scan long, block more than one of its threads,
// or fill the list of Unknowns. Which devices an Unknown may hold is the caller's to say.
//
// A file system that does not answer does not delay the scan: statx(2) with AT_STATX_DONT_SYNC returns what the kernel knows, and the
// number of a device does not change. Where a file system ignores that flag, such as 9p, its process is an Unknown, and so is one with a
// file on FUSE whose inode its server has spoiled.
//
// What a scan does not prove:
//
//   - It is no snapshot. A process may pass a descriptor to one that the scan has left behind, and close its own, or fork and end again and
//     again. The device of a node may also be opened right after the scan.
//   - A descriptor in flight in a unix socket is in no table, nor is a fixed file of io_uring.
//   - A driver, a mounted file system, a swap area and a device mapper hold devices without any process.
//   - close(2) removes a descriptor before the driver is done with it.
//   - Memory may be mapped from another file than the device: buffers of DRM and of dma-buf have files of their own. A process
//     that uses such a buffer usually has the device open too.
//   - A node on a network file system whose server has removed it (ESTALE) counts as no device. So does a file on FUSE that does not
//     show its type, if the mount has the option nodev, or its process is in a user namespace: there, the kernel opens no devices.
//   - Processes outside the PID namespace of /proc are not seen. Scan.Namespace names one that is not the machine's first.
//
// Names of a process do not prove anything either: it sets its command, and with a user namespace its executable, as it likes.
// Only PID and Started are the kernel's, and the cgroup is as good as the rights to its directory.
//
// Cost: 6 to 10 µs for a file, and 100 to 350 µs for a process with its libraries, nearly all of it in the kernel. The memory of the
// package does not grow with the number of processes that it can see. The kernel caches about 1 KiB for each file in /proc, which it can reclaim, and
// charges the cgroup of the scanning process. There are no pauses in a scan: callers may space scans by Scan.CPU.
//
// Capabilities: CAP_SYS_PTRACE, to look at processes of other users; CAP_DAC_READ_SEARCH, to list their directories in /proc; and
// CAP_CHECKPOINT_RESTORE, for map_files (CAP_SYS_ADMIN before Linux 5.9). They have to be those of the first user namespace. The user
// is best root, to whom FUSE file systems of root show their files.
package openers
