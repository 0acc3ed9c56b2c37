package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
)

// newRulesCommand returns "devmgrd rules".
func newRulesCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "rules",
		Short: "Write and check rules for device plugins",
		Long: "rules writes and checks the file of plugins.rules: which pods may serve which resource, and which grants device plugins\n" +
			"may make to containers. To enforce rules: suggest them on a node that works, read them, set plugins.rules to report, and\n" +
			"then to enforce when there are no further reports.",
		Example: "  devmgrd rules suggest > /etc/devmgrd/rules.yaml\n  devmgrd rules check",
	}, newSuggestCommand(), newRulesCheckCommand())
}

func newSuggestCommand() *cobra.Command {
	return withSocketFlag(&cobra.Command{
		Use:   "suggest",
		Short: "Print rules that allow the plugins and grants of this node",
		Long: "suggest prints rules that allow the plugin pods which serve each resource now, and all grants of its plugin since devmgrd\n" +
			"started, and to containers that existed then. Numbers and device IDs in names and paths become patterns. Read each line:\n" +
			"the rules also allow an attacker's earlier grants.",
		Example: "  devmgrd rules suggest > /etc/devmgrd/rules.yaml",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, seen, err := observe(cmd)
			if err != nil {
				return err
			}
			text, err := pluginrules.Suggest(node, time.Now(), seen, hostFiles{})
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	})
}

func newRulesCheckCommand() *cobra.Command {
	return withConfigFlags(withSocketFlag(&cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a rules file, and print what it would refuse on this node",
		Long: "check reads a rules file and compares it with the current plugins of this node and their grants. It changes nothing. The\n" +
			"exit status is 1 if the rules would refuse one of them, and 2 if the file has mistakes.",
		Example: "  devmgrd rules check\n  devmgrd rules check ./rules.yaml",
		Args:    usage(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			file := c.Plugins.RulesFile
			if len(args) > 0 {
				file = args[0]
			}
			rules, err := pluginrules.ReadFile(file)
			if err != nil {
				return err
			}
			_, seen, err := observe(cmd)
			if err != nil {
				return err
			}
			return showAudit(cmd.OutOrStdout(), file, rules, seen, hostFiles{})
		},
	}))
}

// showAudit prints the registrations and grants that the rules would refuse. It fails if there are any.
func showAudit(to io.Writer, file string, rules *pluginrules.Rules, seen []pluginrules.Observation, host pluginrules.Host) error {
	t := table.New(to, "RESOURCE", "RULE", "WHY")
	refused := 0
	for _, o := range seen {
		for _, v := range rules.Audit(o, host) {
			t.Row(string(o.Resource), v.Rule, v.Message)
			refused++
		}
	}
	if refused > 0 {
		t.Flush()
		return fmt.Errorf("%s would refuse %d registrations or grants of this node", file, refused)
	}
	fmt.Fprintf(to, "%s has %s and allows all registrations and grants of %s.\n", file, count(len(rules.Rules), "rule"), count(len(seen), "resource"))
	return nil
}

// count formats a number with its noun.
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// observe asks the daemon for its node and its observations of device plugins.
func observe(cmd *cobra.Command) (node string, seen []pluginrules.Observation, err error) {
	err = call(cmd, askLimit, func(ctx context.Context, c adminv1.AdminServiceClient) error {
		status, err := c.GetStatus(ctx, &adminv1.GetStatusRequest{})
		if err != nil {
			return err
		}
		plugins, err := c.ListPlugins(ctx, &adminv1.ListPluginsRequest{})
		if err != nil {
			return err
		}
		grants, err := c.ListGrants(ctx, &adminv1.ListGrantsRequest{})
		if err != nil {
			return err
		}
		node, seen = status.Node, observationsOf(plugins.Plugins, grants.Grants)
		return nil
	})
	return node, seen, err
}

func observationsOf(plugins []*adminv1.Plugin, grants []*adminv1.Grants) []pluginrules.Observation {
	all := map[device.ResourceName]*pluginrules.Observation{}
	of := func(name string) *pluginrules.Observation {
		r := device.ResourceName(name)
		if all[r] == nil {
			all[r] = &pluginrules.Observation{Resource: r}
		}
		return all[r]
	}
	for _, p := range plugins {
		o, pod := of(p.ResourceName), device.PluginPod{}
		if p.Pod != nil {
			pod.UID, pod.Namespace, pod.Name = device.PodUID(p.Pod.Uid), p.Pod.Namespace, p.Pod.Name
			pod.ServiceAccount = p.Pod.ServiceAccount
		}
		o.Plugins = append(o.Plugins, pod)
	}
	full := false // something has been granted of resources that grants does not name
	for _, g := range grants {
		if g.ResourceName == "" {
			full = g.Full
			continue
		}
		of(g.ResourceName).Granted = &device.PluginGrants{
			Env: grantNames(g.Env), Mounts: grantNames(g.Mounts), Devices: grantNames(g.Devices),
			Annotations: grantNames(g.Annotations), CDIKinds: grantNames(g.CdiKinds), Full: g.Full,
		}
	}
	for _, o := range all {
		if full && o.Granted == nil {
			o.Granted = &device.PluginGrants{Full: true}
		}
	}
	return lists.Map(slices.Sorted(maps.Keys(all)), func(r device.ResourceName) pluginrules.Observation { return *all[r] })
}

func grantNames(all []*adminv1.GrantName) []device.GrantName {
	return lists.Map(all, func(n *adminv1.GrantName) device.GrantName { return device.GrantName{Text: n.Text, Pattern: n.Pattern} })
}

// hostFiles looks up files of this host.
type hostFiles struct{}

// Resolve is part of pluginrules.Host.
func (hostFiles) Resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return path
}

// Node is part of pluginrules.Host.
func (h hostFiles) Node(path string) (device.HostNode, bool) {
	real := h.Resolve(path)
	var stat unix.Stat_t
	if err := unix.Stat(real, &stat); err != nil {
		return device.HostNode{}, false
	}
	kind := map[uint32]string{unix.S_IFCHR: "c", unix.S_IFBLK: "b"}[stat.Mode&unix.S_IFMT]
	return device.HostNode{Path: real, Kind: kind, Major: int64(unix.Major(stat.Rdev))}, kind != ""
}
