package cli

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newExplainCommand returns "devmgrd explain".
func newExplainCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
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
			return ask(cmd, adminv1.AdminServiceClient.Explain, &adminv1.ExplainRequest{Namespace: namespace, Name: name}, showExplanation)
		},
	})
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
			t.Row(a.Container, a.ResourceName, table.IDs(a.DeviceIds), cmp.Or(a.Why, "-"))
		}
		t.Flush()
	}
}
