package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version = ""

// pluginAPIs are the versions of the device plugin API that registrations may name.
const pluginAPIs = "v1beta1"

// A build identifies the sources of this binary.
type build struct{ version, commit, goVersion string }

// thisBuild reads what the linker and the go command wrote into the binary.
func thisBuild() build {
	b := build{version: version, commit: "unknown", goVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.version == "" {
		b.version = strings.Trim(info.Main.Version, "()")
	}
	if b.version == "" {
		b.version = "devel"
	}
	modified := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	if modified {
		b.commit += " with changes"
	}
	return b
}

// newVersionCommand returns "devmgrd version".
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Long:    "version prints the version, the commit, the Go release and the supported versions of the device plugin API.",
		Example: "  devmgrd version",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "version:           %s\ncommit:            %s\ngo:                %s\ndevice plugin API: %s\n",
				b.version, b.commit, b.goVersion, pluginAPIs)
			return err
		},
	}
}
