package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newForgetCommand returns "devmgrd forget".
func newForgetCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:   "forget RESOURCE",
		Short: "Remove a resource without a plugin from the state file and the Node",
		Long: "forget removes a resource permanently: the record of its plugin and devices, their cordons, and the Node's capacity.\n" +
			"Otherwise a published resource stays on the Node, in the end with capacity 0, since an absent plugin may return. The\n" +
			"command fails while a plugin serves the resource, or a pod of this node has or requests its devices. The history is\n" +
			"kept. A plugin that registers the resource later brings it back.",
		Example: "  devmgrd forget vendor.example/old-gpu",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, adminv1.AdminServiceClient.Forget, &adminv1.ForgetRequest{ResourceName: args[0]}, func(to io.Writer, answer *adminv1.ForgetResponse, _ time.Time) {
				showForgotten(to, args[0], answer)
			})
		},
	})
}

func showForgotten(to io.Writer, resource string, answer *adminv1.ForgetResponse) {
	fmt.Fprintf(to, "%s is forgotten. It is removed from the Node as soon as the API server is reachable.\n", visible.Text(resource))
	if len(answer.Lifted) > 0 {
		ids := lists.Map(answer.Lifted, func(d *adminv1.DeviceName) string { return shown(d.Id) })
		fmt.Fprintf(to, "Cordons removed: %s\n", strings.Join(ids, ", "))
	}
}
