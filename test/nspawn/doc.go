// Package nspawn boots a Debian with systemd-nspawn, for tests that need systemd but no kernel of their own.
//
// There are three places. Outside, where the network is, the base system is made if the cache has none. In the namespaces
// that test/cluster makes, the machine is booted from a layer over the base system; all of it goes with the namespaces. The
// calling program runs once more in the machine, and so does the cluster that it starts there: containerd, the kubelet and
// devmgrd are neighbours as on any node, systemd is process 1, and paths are the default ones.
//
// It needs what test/cluster needs, and debootstrap and systemd-nspawn, which it installs as root on Debian.
package nspawn
