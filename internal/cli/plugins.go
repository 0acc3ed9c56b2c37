package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
)

// newPluginsCommand returns "devmgrd plugins".
func newPluginsCommand() *cobra.Command {
	return withAskFlags(&cobra.Command{
		Use:     "plugins",
		Short:   "Show the device plugins",
		Long:    "plugins shows the device plugin of each resource: its state, pod, socket and devices and, if it does not serve, its last error.",
		Example: "  devmgrd plugins",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, adminv1.AdminServiceClient.ListPlugins, &adminv1.ListPluginsRequest{}, showPlugins)
		},
	})
}

func showPlugins(to io.Writer, answer *adminv1.ListPluginsResponse, now time.Time) {
	t := table.New(to, "RESOURCE", "STATE", "SINCE", "POD", "SOCKET", "DEVICES", "HEALTHY", "PRESTART", "PREFERS", "LAST ERROR")
	for _, p := range answer.Plugins {
		t.Row(p.ResourceName, p.State, ago(p.Since, now), podName(p.Pod), sockets(p), fmt.Sprint(p.Devices), fmt.Sprint(p.Healthy), yes(p.PreStart), yes(p.Prefers), lastError(p, now))
	}
	t.FlushOr("No device plugin has registered.")
	showNotRedirected(to, answer.NotRedirected)
}

// sockets names a plugin's socket, and those of further plugins of the resource.
func sockets(p *adminv1.Plugin) string {
	if len(p.Reserve) == 0 {
		return p.Endpoint
	}
	return p.Endpoint + ", in reserve: " + strings.Join(p.Reserve, ", ")
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
