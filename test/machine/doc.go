// Package machine is a node that boots: a Debian in a virtual machine, with systemd as process 1, cgroup v2, AppArmor or SELinux, and
// containerd and the kubelet as units. It has two NUMA nodes. The control plane is test/cluster's, outside of the machine.
//
// What the machine's disk begins with is made once and kept in the cache of test/cluster; a machine writes to an overlay of its own.
// It is on a link of its own with the control plane, in the namespaces that test/cluster makes, and commands reach it by SSH. QEMU runs
// it, with KVM where a machine boots with KVM, and emulated otherwise. It ends with the namespaces, and leaves nothing behind.
//
// It needs root on a Debian, as test/cluster does, and installs what else it needs.
package machine
