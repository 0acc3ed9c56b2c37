package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/table"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newStatusCommand returns "devmgrd status".
func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the daemon's components, resources and waiting pods",
		Long: "status shows whether each component of the daemon is ready, how many devices of each resource are in each state, and\n" +
			"which pods wait for devices.",
		Example: "  devmgrd status\n  devmgrd status -o json",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.GetStatusResponse, error) {
				return c.GetStatus(ctx, &adminv1.GetStatusRequest{})
			}, func(to io.Writer, s *adminv1.GetStatusResponse) { showStatus(to, s, time.Now()) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showStatus(to io.Writer, s *adminv1.GetStatusResponse, now time.Time) {
	fmt.Fprintf(to, "devmgrd %s on node %s, running for %s\n\n", s.Version, s.Node, ago(s.Started, now))
	components := table.New(to, "COMPONENT", "STATE")
	for _, p := range s.Components {
		state := "ok"
		if !p.Ready {
			state = p.Problem
		}
		components.Row(p.Name, state)
	}
	components.End()
	resources := table.New(to, "RESOURCE", "PLUGIN", "CAPACITY", "FREE", "ASSIGNED", "UNHEALTHY", "CORDONED", "NOTES")
	for _, r := range s.Resources {
		row := []string{r.Name, r.Plugin}
		for _, n := range []int32{r.NodeCapacity, r.Free, r.Assigned, r.Unhealthy, r.Cordoned} {
			row = append(row, fmt.Sprint(n))
		}
		resources.Row(append(row, rare(r))...)
	}
	resources.End()
	if len(s.Resources) == 0 {
		fmt.Fprintln(to, "No device plugin has registered.")
		fmt.Fprintln(to)
	}
	waiting := table.New(to, "WAITING POD", "REASON", "SINCE", "WHY")
	for _, w := range s.Waiting {
		waiting.Row(w.Namespace+"/"+w.Name, w.Reason, ago(w.Since, now), w.Message)
	}
	waiting.End()
	if len(s.Waiting) == 0 {
		fmt.Fprintln(to, "No pod waits.")
	}
	showNotRedirected(to, s.NotRedirected)
}

// showNotRedirected prints the containers in which a device plugin is registered with the kubelet, and the remedy.
func showNotRedirected(to io.Writer, all []*adminv1.PodContainer) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(to)
	t := table.New(to, "NOT REDIRECTED", "CONTAINER", "WHY")
	for _, c := range all {
		t.Row(c.Namespace+"/"+c.Pod, c.Container, "created while devmgrd was away; a device plugin in it is registered with the kubelet: delete the pod")
	}
	t.Flush()
}

// rare lists the counts that are mostly zero.
func rare(r *adminv1.Resource) string {
	var all []string
	if r.Stale > 0 {
		all = append(all, fmt.Sprintf("%d stale", r.Stale))
	}
	switch {
	case r.TargetCapacity > r.NodeCapacity:
		all = append(all, fmt.Sprintf("capacity rising to %d", r.TargetCapacity))
	case r.TargetCapacity < r.NodeCapacity: // mostly within the stabilization window of nodestatus
		all = append(all, fmt.Sprintf("capacity falling to %d", r.TargetCapacity))
	}
	if r.Withheld > 0 {
		all = append(all, fmt.Sprintf("%d withheld", r.Withheld))
	}
	if r.Quarantined > 0 {
		all = append(all, fmt.Sprintf("%d quarantined", r.Quarantined))
	}
	return dash(strings.Join(all, ", "))
}

// newPluginsCommand returns "devmgrd plugins".
func newPluginsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "plugins",
		Short:   "Show the device plugins",
		Long:    "plugins shows the device plugin of each resource: its state, pod, socket and devices and, if it does not serve, its last error.",
		Example: "  devmgrd plugins",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ListPluginsResponse, error) {
				return c.ListPlugins(ctx, &adminv1.ListPluginsRequest{})
			}, func(to io.Writer, answer *adminv1.ListPluginsResponse) { showPlugins(to, answer, time.Now()) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showPlugins(to io.Writer, answer *adminv1.ListPluginsResponse, now time.Time) {
	t := table.New(to, "RESOURCE", "STATE", "SINCE", "POD", "SOCKET", "DEVICES", "HEALTHY", "PRESTART", "PREFERS", "LAST ERROR")
	for _, p := range answer.Plugins {
		t.Row(p.ResourceName, p.State, ago(p.Since, now), podName(p.Pod), p.Endpoint, fmt.Sprint(p.Devices), fmt.Sprint(p.Healthy), yes(p.PreStart), yes(p.Prefers), lastError(p, now))
	}
	t.Flush()
	if len(answer.Plugins) == 0 {
		fmt.Fprintln(to, "No device plugin has registered.")
	}
	showNotRedirected(to, answer.NotRedirected)
}

// podName names a plugin's pod. Its service account is in the JSON output.
func podName(p *adminv1.PluginPod) string {
	if p == nil {
		return "-"
	}
	return p.Namespace + "/" + p.Name
}

// lastError returns the last error of a plugin that does not serve. For a plugin that serves only the JSON output has it.
func lastError(p *adminv1.Plugin, now time.Time) string {
	if p.LastError == "" || p.State == "serving" {
		return "-"
	}
	return fmt.Sprintf("%s ago: %s", ago(p.LastErrorTime, now), p.LastError)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// newDevicesCommand returns "devmgrd devices".
func newDevicesCommand() *cobra.Command {
	cmd := &cobra.Command{
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
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ListDevicesResponse, error) {
				return c.ListDevices(ctx, request)
			}, func(to io.Writer, answer *adminv1.ListDevicesResponse) { showDevices(to, answer.Devices, time.Now()) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showDevices(to io.Writer, devices []*adminv1.Device, now time.Time) {
	t := table.New(to, "RESOURCE", "DEVICE", "STATE", "NUMA", "HOLDER", "NOTES")
	for _, d := range devices {
		t.Row(d.ResourceName, shown(d.Id), d.State, dash(numbers(d.NumaNodes)), holder(d.Holder), dash(strings.Join(notes(d, now), "; ")))
	}
	t.Flush()
	if len(devices) == 0 {
		fmt.Fprintln(to, "There are no devices.")
	}
}

func numbers(all []int32) string {
	text := make([]string, len(all))
	for i, n := range all {
		text[i] = strconv.Itoa(int(n))
	}
	return strings.Join(text, ",")
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
	if c := d.Cordon; c != nil {
		note := "cordoned for " + ago(c.Since, now)
		if c.Reason != "" {
			note += ": " + c.Reason
		}
		all = append(all, note)
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
	cmd := &cobra.Command{
		Use:   "watch [RESOURCE]",
		Short: "Show each device, its state and its holder, live",
		Long: "watch prints the table of the devices command, and again after each change, until you end it. On a terminal the new table\n" +
			"replaces the old one. With -o json each table is one line.",
		Example: "  devmgrd watch\n  devmgrd watch vendor.example/gpu -o json",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE:    watch,
	}
	addAskFlags(cmd)
	return cmd
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
				showDevices(to, answer.Devices, time.Now())
				if !screen {
					fmt.Fprintln(to)
				}
			}
		}
	})
}

// newAssignmentsCommand returns "devmgrd assignments".
func newAssignmentsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "assignments [NAMESPACE/POD]",
		Short:   "Show which container has which devices",
		Long:    "assignments shows the devices of each container, of one pod or of all. The table shows the first few of many devices; -o json has all.",
		Example: "  devmgrd assignments\n  devmgrd assignments default/training-0",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.ListAssignmentsRequest{}
			if len(args) > 0 {
				var err error
				if request.Namespace, request.Name, err = splitPod(args[0]); err != nil {
					return err
				}
			}
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ListAssignmentsResponse, error) {
				return c.ListAssignments(ctx, request)
			}, func(to io.Writer, answer *adminv1.ListAssignmentsResponse) { showAssignments(to, answer.Assignments) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showAssignments(to io.Writer, all []*adminv1.Assignment) {
	t := table.New(to, "POD", "CONTAINER", "RESOURCE", "DEVICES", "NOTES")
	for _, a := range all {
		note := ""
		if a.Ended {
			note = "the pod has ended; its containers may still run"
		}
		t.Row(a.Namespace+"/"+a.Pod, a.Container, a.ResourceName, table.IDs(a.DeviceIds), dash(note))
	}
	t.Flush()
	if len(all) == 0 {
		fmt.Fprintln(to, "No container has devices.")
	}
}

// newExplainCommand returns "devmgrd explain".
func newExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/POD",
		Short: "Explain why a pod has its devices, or waits for them",
		Long: "explain shows a pod's devices and the reasons for their choice, or the one reason why the pod waits, since when, and\n" +
			"what would end the wait. For a pod that has ended on this node, explain shows how it ended.",
		Example: "  devmgrd explain default/training-0",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, name, err := splitPod(args[0])
			if err != nil {
				return err
			}
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ExplainResponse, error) {
				return c.Explain(ctx, &adminv1.ExplainRequest{Namespace: namespace, Name: name})
			}, func(to io.Writer, answer *adminv1.ExplainResponse) { showExplanation(to, answer, time.Now()) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showExplanation(to io.Writer, e *adminv1.ExplainResponse, now time.Time) {
	line := func(head, text string) {
		if text != "" {
			fmt.Fprintf(to, "%-9s %s\n", head, visible.Text(text))
		}
	}
	line("Pod:", e.Namespace+"/"+e.Name+", UID "+e.Uid)
	line("State:", e.Verdict)
	line("Reason:", e.Reason)
	line("Why:", e.Message)
	if e.Since != nil {
		line("Since:", fmt.Sprintf("%s (%s ago)", e.Since.AsTime().UTC().Format(time.RFC3339), ago(e.Since, now)))
	}
	line("Ends:", e.Ends)
	if e.Retry != nil {
		line("Retry:", "at "+e.Retry.AsTime().UTC().Format(time.RFC3339)+", or earlier after a change")
	}
	if len(e.Assignments) > 0 {
		fmt.Fprintln(to)
		t := table.New(to, "CONTAINER", "RESOURCE", "DEVICES", "CHOICE")
		for _, a := range e.Assignments {
			t.Row(a.Container, a.ResourceName, table.IDs(a.DeviceIds), dash(a.Why))
		}
		t.Flush()
	}
}

// newCordonCommand returns "devmgrd cordon".
func newCordonCommand() *cobra.Command {
	cmd := &cobra.Command{
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
			reason, err := cmd.Flags().GetString("reason")
			if err != nil {
				return err
			}
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.CordonResponse, error) {
				return c.Cordon(ctx, &adminv1.CordonRequest{Devices: devices, Reason: reason})
			}, func(to io.Writer, answer *adminv1.CordonResponse) { showDevices(to, answer.Devices, time.Now()) })
		},
	}
	addAskFlags(cmd)
	cmd.Flags().String("reason", "", "the reason, which is kept with the cordon")
	return cmd
}

// newDrainCommand returns "devmgrd drain".
func newDrainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain RESOURCE/DEVICE...",
		Short: "Take single devices out of service, and evict their pods",
		Long: "drain cordons devices and evicts the pods that have them, through the eviction API, so that disruption budgets hold. It\n" +
			"waits until no pod has any of them. If you end drain before, the devices stay cordoned, and devmgrd still evicts the\n" +
			"pods.",
		Example: "  devmgrd drain vendor.example/gpu/GPU-3 --reason \"fan noise, ticket 4711\"\n  devmgrd drain vendor.example/gpu/GPU-3 --timeout 10m",
		Args:    usage(cobra.MinimumNArgs(1)),
		RunE:    drain,
	}
	addAskFlags(cmd)
	cmd.Flags().String("reason", "", "the reason, which is kept with the cordon")
	cmd.Flags().Duration("timeout", 0, "how long to wait; 0: without a limit")
	return cmd
}

func drain(cmd *cobra.Command, args []string) error {
	devices, err := splitDevices(args)
	if err != nil {
		return err
	}
	reason, err := cmd.Flags().GetString("reason")
	if err != nil {
		return err
	}
	limit, err := cmd.Flags().GetDuration("timeout")
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = forever
	}
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
					fmt.Fprintf(cmd.ErrOrStderr(), "%s\n", visible.Text(fmt.Sprintf("waiting for %s, which has %s/%s", holder(d.Holder), d.ResourceName, shown(d.Id))))
				}
			}
		}
	}, func(to io.Writer, answer *adminv1.DrainResponse) { showDevices(to, answer.Devices, time.Now()) })
}

// newUncordonCommand returns "devmgrd uncordon".
func newUncordonCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "uncordon RESOURCE/DEVICE...",
		Short:   "Put devices back into service",
		Long:    "uncordon puts devices back into service. Devices without a cordon stay as they are.",
		Example: "  devmgrd uncordon vendor.example/gpu/GPU-3",
		Args:    usage(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			devices, err := splitDevices(args)
			if err != nil {
				return err
			}
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.UncordonResponse, error) {
				return c.Uncordon(ctx, &adminv1.UncordonRequest{Devices: devices})
			}, func(to io.Writer, answer *adminv1.UncordonResponse) { showDevices(to, answer.Devices, time.Now()) })
		},
	}
	addAskFlags(cmd)
	return cmd
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
