// Package cluster is a one-node Kubernetes on one machine, made of the real parts: etcd, the API server, the
// scheduler, the controller manager, a kubelet, containerd, runc and CNI plugins. End-to-end tests and the demo run
// in it.
//
// Three things happen, in this order:
//
//   - [Build] makes the programs from their Go modules (../tools) and keeps them in a cache.
//   - [Main] runs the calling program a second time, inside namespaces of its own: processes, mounts, network, IPC
//     and host name. There /run, /tmp and the folders that a node writes to are private and empty, so everything
//     uses its default path and a kubelet or containerd of the machine's owner is neither seen nor touched.
//   - [Start], called inside, brings the node up and returns when it is Ready.
//
// When the program ends, in whatever way, the kernel ends every process in its namespaces, and a janitor process
// removes what namespaces do not hold: the run's cgroups and its directory.
//
// The package needs Linux, root, overlayfs, and the Go toolchain for what is not in the cache yet.
package cluster
