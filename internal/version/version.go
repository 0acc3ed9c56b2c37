// Package version identifies the sources of the running binary.
package version

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set when a release is built: -ldflags "-X github.com/devmgrd/devmgrd/internal/version.version=v1.2.3".
var version = ""

// A Build identifies the sources of a binary.
type Build struct {
	Version string // of the release, or what the go command knows
	Commit  string
	Go      string // release of Go
}

// Get returns what the linker and the go command wrote into this binary.
func Get() Build {
	b := Build{Version: version, Commit: "unknown", Go: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = strings.Trim(info.Main.Version, "()")
	}
	if b.Version == "" {
		b.Version = "devel"
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		b.Commit += " with changes"
	}
	return b
}
