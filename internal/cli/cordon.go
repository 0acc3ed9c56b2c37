package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newCordonCommand returns "devmgrd cordon".
func newCordonCommand() *cobra.Command {
	cmd := withAskFlags(&cobra.Command{
		Use:   "cordon RESOURCE/DEVICE...",
		Short: "Take single devices out of service",
		Long: "cordon takes devices out of service: devmgrd assigns them to no pod, and the Node's capacity falls by those not in use. A\n" +
			"pod keeps its cordoned device until the pod ends. A cordon lasts until uncordon, also over restarts and reboots.",
		Example: "  devmgrd cordon vendor.example/gpu/GPU-3 --reason \"fan noise, ticket 4711\"",
		Args:    usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			devices, err := splitDevices(args)
			if err != nil {
				return err
			}
			reason := flagValue(cmd.Flags().GetString, "reason")
			return ask(cmd, adminv1.AdminServiceClient.Cordon, &adminv1.CordonRequest{Devices: devices, Reason: reason}, showDevices)
		},
	})
	cmd.Flags().String("reason", "", "the reason, which is kept with the cordon")
	return cmd
}

// newDrainCommand returns "devmgrd drain".
func newDrainCommand() *cobra.Command {
	cmd := withAskFlags(&cobra.Command{
		Use:   "drain RESOURCE/DEVICE...",
		Short: "Take single devices out of service, and evict their pods",
		Long: "drain cordons devices and evicts the pods that have them, through the eviction API, so that disruption budgets hold. It\n" +
			"waits until no pod has any of them. If you end drain before, the devices stay cordoned, and devmgrd still evicts the\n" +
			"pods.",
		Example: "  devmgrd drain vendor.example/gpu/GPU-3 --reason \"fan noise, ticket 4711\"\n  devmgrd drain vendor.example/gpu/GPU-3 --timeout 10m",
		Args:    usage(cobra.MinimumNArgs(1)),
		RunE:    drain,
	})
	cmd.Flags().String("reason", "", "the reason, which is kept with the cordon")
	cmd.Flags().Duration("timeout", 0, "how long to wait; 0: without a limit")
	return cmd
}

func drain(cmd *cobra.Command, args []string) error {
	devices, err := splitDevices(args)
	if err != nil {
		return err
	}
	reason := flagValue(cmd.Flags().GetString, "reason")
	limit := cmp.Or(flagValue(cmd.Flags().GetDuration, "timeout"), forever)
	return askFor(cmd, limit, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.DrainResponse, error) {
		stream, err := c.Drain(ctx, &adminv1.DrainRequest{Devices: devices, Reason: reason})
		for {
			answer := &adminv1.DrainResponse{}
			if err == nil {
				answer, err = stream.Recv()
			}
			if err != nil || answer.Done {
				return answer, err
			}
			for _, d := range answer.Devices {
				if d.Holder != nil {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", visible.Text(fmt.Sprintf("waiting for %s, which has %s/%s", holders(d), d.ResourceName, shown(d.Id))))
				}
			}
		}
	}, showDevices)
}

// newUncordonCommand returns "devmgrd uncordon".
func newUncordonCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:   "uncordon RESOURCE/DEVICE...",
		Short: "Put devices back into service",
		Long: "uncordon puts devices back into service. Devices without a cordon stay as they are. A busy device, which is still in use\n" +
			"after its pod has ended, is released as it is, with all others of that pod.",
		Example: "  devmgrd uncordon vendor.example/gpu/GPU-3",
		Args:    usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			devices, err := splitDevices(args)
			if err != nil {
				return err
			}
			return ask(cmd, adminv1.AdminServiceClient.Uncordon, &adminv1.UncordonRequest{Devices: devices}, showDevices)
		},
	})
}

// splitDevices reads several RESOURCE/ID, and drops duplicates.
func splitDevices(args []string) ([]*adminv1.DeviceName, error) {
	slices.Sort(args)
	var all []*adminv1.DeviceName
	for _, arg := range slices.Compact(args) {
		d, err := splitDevice(arg)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}
