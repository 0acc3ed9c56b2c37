package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// betweenLooks is the pause between two queries of "devmgrd status --wait".
const betweenLooks = time.Second

// newStatusCommand returns "devmgrd status".
func newStatusCommand() *cobra.Command {
	cmd := withAskFlags(&cobra.Command{
		Use:   "status",
		Short: "Show the daemon's components, resources and waiting pods",
		Long: "status shows whether each component of the daemon is ready, how many devices of each resource are in each state, and\n" +
			"which pods wait for devices. With --wait the exit status is 1 if a component is still not ready after that time.",
		Example: "  devmgrd status\n  devmgrd status -o json\n  devmgrd status --wait 1m",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wait := flagValue(cmd.Flags().GetDuration, "wait")
			if wait <= 0 {
				return ask(cmd, adminv1.AdminServiceClient.GetStatus, &adminv1.GetStatusRequest{}, showStatus)
			}
			var missing []string
			err := askFor(cmd, wait+askLimit, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.GetStatusResponse, error) {
				s, err := whenReady(ctx, c, wait)
				missing = notReady(s)
				return s, err
			}, showStatus)
			if err == nil && len(missing) > 0 {
				return fmt.Errorf("not ready after %s: %s", wait, strings.Join(missing, ", "))
			}
			return err
		},
	})
	cmd.Flags().Duration("wait", 0, "wait up to this long until all components are ready")
	return cmd
}

// whenReady returns the daemon's status as soon as all components are ready, and otherwise the last one within wait.
func whenReady(ctx context.Context, c adminv1.AdminServiceClient, wait time.Duration) (*adminv1.GetStatusResponse, error) {
	over := time.After(wait)
	for {
		s, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
		if err == nil && len(notReady(s)) == 0 {
			return s, nil
		}
		select {
		case <-time.After(betweenLooks):
		case <-over:
			return s, err
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// notReady returns the names of the components that are not ready.
func notReady(s *adminv1.GetStatusResponse) (names []string) {
	for _, c := range s.GetComponents() {
		if !c.Ready {
			names = append(names, c.Name)
		}
	}
	return names
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
		if r.Claimed && r.NodeCapacity == 0 {
			row[2] = "-"
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
	release := ""
	for _, limit := range s.Limits {
		if limit.Release != release {
			release = limit.Release
			fmt.Fprintf(to, "\nWith %s:\n", visible.Text(release))
		}
		fmt.Fprintf(to, "  %s\n", visible.Text(limit.Text))
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
	add := func(n int32, what string) {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %s", n, what))
		}
	}
	add(r.Stale, "stale")
	switch {
	case r.Claimed:
		all = append(all, "offered through DRA")
	case r.OverMaxDevices > 0:
		all = append(all, fmt.Sprintf("not through DRA: more devices than dra.maxDevices %d allows", r.OverMaxDevices))
	}
	switch {
	case r.TargetCapacity > r.NodeCapacity:
		all = append(all, fmt.Sprintf("capacity rising to %d", r.TargetCapacity))
	case r.TargetCapacity < r.NodeCapacity: // mostly within the stabilization window of nodestatus
		all = append(all, fmt.Sprintf("capacity falling to %d", r.TargetCapacity))
	}
	add(r.Suspended, "suspended")
	add(r.Refused, "refused")
	add(r.Withheld, "withheld")
	if r.Awaited != "" {
		all = append(all, "free devices hidden from the scheduler while pod "+r.Awaited+" waits")
	}
	add(r.Unlisted, "unlisted")
	add(r.Releasing, "releasing")
	add(r.Busy, "busy")
	add(r.Quarantined, "quarantined")
	return cmp.Or(strings.Join(all, ", "), "-")
}
