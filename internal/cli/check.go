package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/cli/internal/preflight"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// newCheckCommand returns "devmgrd check".
func newCheckCommand() *cobra.Command {
	cmd := withOutputFlag(withConfigFlags(&cobra.Command{
		Use:   "check",
		Short: "Check this node's setup for devmgrd, and print remedies",
		Long: "check examines the container runtime, its NRI and validator, devmgrd's rights at the API server, the sockets, the state file\n" +
			"and the kubelet's own device manager. Each line says ok, warn or FAIL; a remedy follows each warn and FAIL. The command\n" +
			"changes nothing, and may run before devmgrd or next to it.",
		Example: "  devmgrd check\n  devmgrd check --config /tmp/new.yaml -o json",
		Args:    usage(noArguments),
		RunE:    check,
	}))
	cmd.Flags().String("runtime-endpoint", "", "the runtime's CRI `socket` (default the kubelet's)")
	cmd.Flags().String("kubelet-config", preflight.DefaultKubeletConfig, "the kubelet's configuration `file`")
	cmd.Flags().String("containerd-config", "", "containerd's configuration `file` (default from containerd's command line)")
	return cmd
}

// errUnfit ends a check with failures, which have been printed.
var errUnfit = errors.New("this node is not ready for devmgrd: see the FAIL lines")

func check(cmd *cobra.Command, _ []string) error {
	c, _, err := loadConfig(cmd)
	if err != nil {
		return err
	}
	format, err := outputFormat(cmd, "json", "yaml")
	if err != nil {
		return err
	}
	log := warnings(cmd)
	kube.RouteLogs(log)
	nri.RouteLogs(log)
	node := preflight.Node{
		Config: c, Log: log,
		ConfigFile:       flagValue(cmd.Flags().GetString, "config"),
		Runtime:          flagValue(cmd.Flags().GetString, "runtime-endpoint"),
		KubeletConfig:    flagValue(cmd.Flags().GetString, "kubelet-config"),
		ContainerdConfig: flagValue(cmd.Flags().GetString, "containerd-config"),
	}
	if node.ConfigFile == "" {
		if _, err := os.Stat(config.DefaultFile); err == nil {
			node.ConfigFile = config.DefaultFile
		}
	}
	findings := preflight.Judge(preflight.Gather(cmd.Context(), node))
	if err := printFindings(cmd.OutOrStdout(), format, findings); err != nil {
		return err
	}
	if slices.ContainsFunc(findings, func(f preflight.Finding) bool { return f.Verdict == preflight.Fail }) {
		return errUnfit
	}
	return nil
}

func printFindings(to io.Writer, format string, findings []preflight.Finding) error {
	if format == "" {
		showFindings(to, findings)
		return nil
	}
	text, err := json.Marshal(findings)
	if err != nil {
		return err
	}
	return printJSON(to, format, text)
}

// findingWidth is the width of a line of findings.
const findingWidth = 110

// showFindings prints each finding next to its verdict, and the remedy below it.
func showFindings(to io.Writer, findings []preflight.Finding) {
	width, count := 0, map[preflight.Verdict]int{}
	for _, f := range findings {
		width = max(width, len(f.Check))
		count[f.Verdict]++
	}
	for _, f := range findings {
		lines := wrap(visible.Text(f.Text), findingWidth-8-width)
		if f.Remedy != "" {
			for i, line := range wrap(visible.Text(f.Remedy), findingWidth-11-width) {
				lines = append(lines, [2]string{"-> ", "   "}[min(i, 1)]+line)
			}
		}
		fmt.Fprintf(to, "%-4s  %-*s  %s\n", f.Verdict, width, f.Check, lines[0])
		for _, line := range lines[1:] {
			fmt.Fprintf(to, "%*s%s\n", 8+width, "", line)
		}
	}
	fmt.Fprintf(to, "\n%d ok, %d warn, %d FAIL\n", count[preflight.OK], count[preflight.Warn], count[preflight.Fail])
}

// wrap breaks a text between words, into lines of this width if the words allow it. It returns at least one line.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
