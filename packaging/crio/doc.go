// Package crio holds the part of CRI-O's configuration that devmgrd comes with, so that tests and tools have the file that is
// shipped. There is no code in it.
package crio

import _ "embed" // for what follows

// Config is devmgrd.conf: a file for CRI-O's crio.conf.d.
//
//go:embed devmgrd.conf
var Config string
