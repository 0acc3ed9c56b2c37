// Package boot tests devmgrd on a node that boots (test/machine): installed from its Debian package, under systemd, with cgroup v2
// and AppArmor, next to containerd and the kubelet as units. It has what needs a real machine: systemd's reload, its watchdog and the
// unit's limits, the device filters of cgroup v2, two NUMA nodes, reboots, power cuts, a clock that jumps, a disk that is full.
//
// The tests share one machine, in the order of this package's files. A test that fails takes its machine with it.
//
// With -selinux the machine enforces SELinux instead of AppArmor, with the module that devmgrd ships; the tests are the same but for those of the profile.
//
// make machine runs it, and make machine SELINUX=1.
package boot
