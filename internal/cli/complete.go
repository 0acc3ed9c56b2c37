package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// completeLimit bounds a call that a shell makes while the user types.
const completeLimit = time.Second

// addCompletions adds shell completion of resources, devices and pods, as the daemon knows them. Without an answer there is
// no completion.
func addCompletions(root *cobra.Command) {
	first := func(of func(*cobra.Command) []string) cobra.CompletionFunc {
		return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return of(cmd), cobra.ShellCompDirectiveNoFileComp
		}
	}
	each := func(of func(*cobra.Command) []string) cobra.CompletionFunc {
		return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			return slices.DeleteFunc(of(cmd), func(s string) bool {
				name, _, _ := strings.Cut(s, "\t")
				return slices.Contains(args, name)
			}), cobra.ShellCompDirectiveNoFileComp
		}
	}
	every := func(*adminv1.Device) bool { return true }
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "devices", "watch", "forget":
			cmd.ValidArgsFunction = first(knownResources)
		case "assignments", "explain":
			cmd.ValidArgsFunction = first(knownPods)
		case "cordon", "drain":
			cmd.ValidArgsFunction = each(knownDevices(every))
		case "uncordon":
			cmd.ValidArgsFunction = each(knownDevices(func(d *adminv1.Device) bool { return d.Cordon != nil }))
		case "history":
			complete(cmd, "device", knownDevices(every))
			complete(cmd, "pod", knownPods)
		}
		if cmd.Flags().Lookup("output") != nil {
			complete(cmd, "output", func(*cobra.Command) []string { return []string{"json", "yaml"} })
		}
	}
}

// complete completes a flag's value, regardless of the arguments.
func complete(cmd *cobra.Command, flag string, of func(*cobra.Command) []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return of(cmd), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // there is no such flag
	}
}

func knownResources(cmd *cobra.Command) (all []string) {
	consult(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		answer, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
		for _, r := range answer.GetResources() {
			all = append(all, visible.Text(r.Name))
		}
		return err
	})
	return all
}

func knownDevices(which func(*adminv1.Device) bool) func(*cobra.Command) []string {
	return func(cmd *cobra.Command) (all []string) {
		consult(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) error {
			answer, err := c.ListDevices(ctx, &adminv1.ListDevicesRequest{})
			for _, d := range answer.GetDevices() {
				if which(d) {
					all = append(all, visible.Text(d.ResourceName+"/"+shown(d.Id))+"\t"+d.State)
				}
			}
			return err
		})
		return all
	}
}

func knownPods(cmd *cobra.Command) (all []string) {
	consult(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		held, err := c.ListAssignments(ctx, &adminv1.ListAssignmentsRequest{})
		if err != nil {
			return err
		}
		for _, a := range held.Assignments {
			all = append(all, a.Namespace+"/"+a.Pod)
		}
		status, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
		for _, w := range status.GetWaiting() {
			all = append(all, w.Namespace+"/"+w.Name+"\t"+w.Reason)
		}
		return err
	})
	slices.Sort(all)
	return slices.Compact(all)
}

// consult calls the daemon, and ignores errors: a completing shell cannot show them.
func consult(cmd *cobra.Command, do func(context.Context, adminv1.AdminServiceClient) error) {
	if cmd.Context() == nil {
		cmd.SetContext(context.Background()) // cobra sets none in completion
	}
	_ = call(cmd, completeLimit, do)
}
