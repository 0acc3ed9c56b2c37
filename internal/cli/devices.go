package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// newDevicesCommand returns "devmgrd devices".
func newDevicesCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:     "devices [RESOURCE]",
		Short:   "Show each device, its state and its holder",
		Long:    "devices shows the devices of one resource, or of all, with state, NUMA node, holder, and the reason why a device is out of service.",
		Example: "  devmgrd devices\n  devmgrd devices vendor.example/gpu -o yaml",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.ListDevicesRequest{}
			if len(args) > 0 {
				request.ResourceName = args[0]
			}
			return ask(cmd, adminv1.AdminServiceClient.ListDevices, request, showDevices)
		},
	})
}

func showDevices[A interface{ GetDevices() []*adminv1.Device }](to io.Writer, answer A, now time.Time) {
	t := table.New(to, "RESOURCE", "DEVICE", "STATE", "NUMA", "HOLDER", "NOTES")
	for _, d := range answer.GetDevices() {
		t.Row(d.ResourceName, shown(d.Id), d.State, cmp.Or(numbers(d.NumaNodes), "-"), holders(d), cmp.Or(strings.Join(notes(d, now), "; "), "-"))
	}
	t.FlushOr("There are no devices.")
}

// refusals returns how often a device has been refused.
func refusals(d *adminv1.Device) string {
	if d.Refusals == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times in a row", d.Refusals)
}

func numbers(all []int32) string {
	return strings.Join(lists.Map(all, func(n int32) string { return strconv.Itoa(int(n)) }), ",")
}

// holders returns the pods that have a device: the first, and how many others share it.
func holders(d *adminv1.Device) string {
	if n := len(d.Sharers); n > 0 {
		return fmt.Sprintf("%s and %d more", holder(d.Holder), n)
	}
	return holder(d.Holder)
}

func holder(h *adminv1.Holder) string {
	switch {
	case h == nil:
		return "-"
	case h.Name == "":
		return "a pod with UID " + h.Uid
	case len(h.Containers) == 0:
		return h.Namespace + "/" + h.Name
	}
	return h.Namespace + "/" + h.Name + ":" + strings.Join(h.Containers, ",")
}

// notes returns facts that the state does not include.
func notes(d *adminv1.Device, now time.Time) []string {
	var all []string
	switch c := d.Cordon; {
	case c == nil:
	case c.Suspended:
		all = append(all, c.Reason) // it has the times
	default:
		note := "cordoned for " + ago(c.Since, now)
		if c.Declared {
			note += " by the Node's annotation"
		}
		if c.Reason != "" {
			note += ": " + c.Reason
		}
		all = append(all, note)
	}
	if d.Refusals > 0 && d.State != "refused" {
		all = append(all, "refused "+refusals(d)+": "+d.Refusal)
	}
	if d.Release != nil {
		all = append(all, "not proved free for "+ago(d.Release.Since, now)+": "+d.Release.Why)
	}
	if d.Failures > 0 {
		all = append(all, fmt.Sprintf("failed %d times in the last hour, last %s ago", d.Failures, ago(d.Failed, now)))
	}
	switch {
	case !d.Listed:
		all = append(all, "its plugin does not list it")
	case !d.Healthy && d.State != "unhealthy":
		all = append(all, "unhealthy")
	}
	return all
}

// newWatchCommand returns "devmgrd watch".
func newWatchCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:   "watch [RESOURCE]",
		Short: "Show each device, its state and its holder, live",
		Long: "watch prints the table of the devices command, and again after each change, until you end it. On a terminal the new table\n" +
			"replaces the old one. With -o json each table is one line.",
		Example: "  devmgrd watch\n  devmgrd watch vendor.example/gpu -o json",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE:    watch,
	})
}

func watch(cmd *cobra.Command, args []string) error {
	format, err := outputFormat(cmd, "json")
	if err != nil {
		return err
	}
	request := &adminv1.WatchDevicesRequest{}
	if len(args) > 0 {
		request.ResourceName = args[0]
	}
	to := cmd.OutOrStdout()
	file, is := to.(*os.File)
	screen := is && isTerminal(file)
	return call(cmd, forever, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		stream, err := c.WatchDevices(ctx, request)
		for {
			var answer *adminv1.WatchDevicesResponse
			if err == nil {
				answer, err = stream.Recv()
			}
			switch {
			case err != nil:
				return err
			case format == "json":
				err = printLine(to, answer)
			default:
				if screen {
					fmt.Fprint(to, "\033[H\033[2J") // home, and clear the screen
				}
				showDevices(to, answer, time.Now())
				if !screen {
					fmt.Fprintln(to)
				}
			}
		}
	})
}
