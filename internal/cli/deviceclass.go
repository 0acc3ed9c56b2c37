package cli

import (
	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
)

// newDeviceClassCommand returns "devmgrd deviceclass".
func newDeviceClassCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "deviceclass RESOURCE",
		Short: "Print the DeviceClass of a resource, for kubectl apply",
		Long: "deviceclass prints the DeviceClass of a resource that nodes offer through Dynamic Resource Allocation (dra.resources). Pods\n" +
			"that request the resource as before then get its devices on these nodes, and ResourceClaims can name the class. On\n" +
			"nodes that show the resource in their capacity, the class changes nothing. It needs rights for the whole cluster, which\n" +
			"devmgrd does not have.",
		Example: "  devmgrd deviceclass nvidia.com/gpu | kubectl apply -f -",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			r, err := device.ParseResourceName(args[0])
			if err != nil {
				return usageError{err}
			}
			text, err := dra.Class(r)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
