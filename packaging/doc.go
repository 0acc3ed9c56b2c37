// Package packaging holds what the Debian and RPM packages are made of (nfpm.yaml, deb, rpm), and below it what ships with devmgrd.
// A package starts nothing; an upgrade restarts the service, and not the socket. test/package follows one through a
// Debian's life.
package packaging
