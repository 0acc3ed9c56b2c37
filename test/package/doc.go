// Package debian tests the Debian package as a new user would: on the Debian that test/nspawn boots, with a Kubernetes node
// on it, from the installation to the purge. The packages are built outside the machine, where the network is.
// With RELEASE=dist/release the package installed first is that of the release, whose other files are tested too.
package debian
