// Package containerd holds the part of containerd's configuration that devmgrd comes with, so that tests and tools have the
// file that is shipped. There is no code in it.
package containerd

import _ "embed" // for what follows

// Config is devmgrd.toml: a file for containerd's conf.d.
//
//go:embed devmgrd.toml
var Config string
