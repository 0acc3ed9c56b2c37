package cli

import (
	"cmp"
	"io"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
)

// newAssignmentsCommand returns "devmgrd assignments".
func newAssignmentsCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:     "assignments [NAMESPACE/POD]",
		Short:   "Show which container has which devices",
		Long:    "assignments shows the devices of each container, of one pod or of all. The table shows the first few of many devices; -o json has all.",
		Example: "  devmgrd assignments\n  devmgrd assignments default/training-0",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := &adminv1.ListAssignmentsRequest{}
			if len(args) > 0 {
				var err error
				request.Namespace, request.Name, err = splitPod(args[0])
				if err != nil {
					return err
				}
			}
			return ask(cmd, adminv1.AdminServiceClient.ListAssignments, request, showAssignments)
		},
	})
}

func showAssignments(to io.Writer, answer *adminv1.ListAssignmentsResponse, _ time.Time) {
	t := table.New(to, "POD", "CONTAINER", "RESOURCE", "DEVICES", "NOTES")
	for _, a := range answer.Assignments {
		note := ""
		if a.Ended {
			note = "the pod has ended; its containers may still run"
		}
		t.Row(a.Namespace+"/"+a.Pod, a.Container, a.ResourceName, table.IDs(a.DeviceIds), cmp.Or(note, "-"))
	}
	t.FlushOr("No container has devices.")
}
