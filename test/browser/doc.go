// Package browser tests the status page in a real browser, Debian's Chromium: that of a devmgrd process, with a device plugin
// that comes, fails and goes; and one of a node as people have it, with pods that hold devices and pods that wait. Of that one
// go test -update writes the pictures in docs/images.
//
// It is a module of its own, so that what drives the browser never reaches the product's go.mod. make page runs it.
package browser
