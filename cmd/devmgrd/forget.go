package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// newForgetCommand makes "devmgrd forget".
func newForgetCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "forget RESOURCE",
		Short: "Drop a resource that no plugin serves, from the state file and from the Node",
		Long: "forget removes a resource: the records of its plugin and devices, their cordons, and the Node's capacity. Otherwise a\n" +
			"resource stays on the Node once published, at 0 in the end, since its plugin may return. forget fails while a plugin serves\n" +
			"the resource, or a pod of this node has its devices or asks for them. The history is kept. A plugin that registers the\n" +
			"resource later adds it again.",
		Example: "  devmgrd forget vendor.example/old-gpu",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return ask(cmd, func(ctx context.Context, c adminv1.AdminServiceClient) (*adminv1.ForgetResponse, error) {
				return c.Forget(ctx, &adminv1.ForgetRequest{ResourceName: args[0]})
			}, func(to io.Writer, answer *adminv1.ForgetResponse) { showForgotten(to, args[0], answer) })
		},
	}
	addAskFlags(cmd)
	return cmd
}

func showForgotten(to io.Writer, resource string, answer *adminv1.ForgetResponse) {
	fmt.Fprintf(to, "%s is forgotten. The Node no longer shows it as soon as the API server can be reached.\n", plain(resource))
	if len(answer.Lifted) > 0 {
		ids := make([]string, len(answer.Lifted))
		for i, d := range answer.Lifted {
			ids[i] = shown(d.Id)
		}
		fmt.Fprintf(to, "Cordons that went with it: %s\n", strings.Join(ids, ", "))
	}
}
