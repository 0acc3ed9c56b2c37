package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/table"
)

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
