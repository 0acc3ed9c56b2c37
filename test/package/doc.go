// Package debian tests the Debian package as a new user would: on a Debian that debootstrap has made and systemd-nspawn
// has booted, with a Kubernetes node on it, from the installation to the purge.
//
// There are three places. Outside, where the network is, the packages are built, and the base system if the cache has none.
// In the namespaces that test/cluster makes, the machine is booted from a layer over the base system; all of it goes with
// the namespaces. The tests themselves run in the machine, and so does the cluster that they start there: containerd, the
// kubelet and devmgrd are neighbours as on any node, systemd is process 1, and paths are the default ones.
//
// It needs what test/cluster needs, and debootstrap and systemd-nspawn, which it installs by itself as root on Debian.
package debian
