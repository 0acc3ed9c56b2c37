package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/version"
)

// pluginAPIs are the versions of the device plugin API that registrations may name.
const pluginAPIs = "v1beta1"

// newVersionCommand returns "devmgrd version".
func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version of this binary",
		Long:    "version prints the version, the commit, the Go release and the supported versions of the device plugin API.",
		Example: "  devmgrd version",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := version.Get()
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "version:           %s\ncommit:            %s\ngo:                %s\ndevice plugin API: %s\n",
				b.Version, b.Commit, b.Go, pluginAPIs)
			return err
		},
	}
}
