// Package mac boots a Debian whose kernel enforces AppArmor, installs the package there, and runs devmgrd under its profile.
//
// The machine is emulated by QEMU, without KVM, since the test needs no speed and works anywhere so. Its kernel and its file
// system are Debian's, its file system an image that mke2fs makes of the base system of test/machine. The test runs once
// more in the machine, as process of a unit. There it is the neighbourhood of devmgrd: the API server, the runtime's side of
// NRI (its own adaptation library), a device plugin. The machine's console is in a file, and what the test prints comes
// through a serial line.
//
// make mac runs it. It needs root on a Debian, as test/machine does.
package mac
