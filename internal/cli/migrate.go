package cli

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/cli/internal/migrate"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// newImportCommand returns "devmgrd import".
func newImportCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "import",
		Short:   "Import assignments from another device manager",
		Long:    "import takes over another device manager's assignments. docs/migration.md has all the steps.",
		Example: "  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run",
	}, newImportCheckpointCommand())
}

func newImportCheckpointCommand() *cobra.Command {
	return migration(&cobra.Command{
		Use:   "kubelet-checkpoint FILE",
		Short: "Take over the assignments of the kubelet's device manager",
		Long: "kubelet-checkpoint reads the checkpoint in which a kubelet's device manager keeps its assignments and writes them into\n" +
			"devmgrd's state file, with their pods from the API server. Neither the kubelet nor devmgrd may be running; pods may. If\n" +
			"there are conflicts, the command lists all of them and writes nothing.\n\n" +
			"Afterwards the directory of the checkpoint is moved aside and recreated, if it is plugins.kubeletDir. Otherwise the\n" +
			"kubelet would claim the devices when it starts, and running plugins would register with it again.",
		Example: "  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run\n" +
			"  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name),
	}, migrate.Node.Import)
}

// newExportCommand returns "devmgrd export".
func newExportCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:     "export",
		Short:   "Export assignments for another device manager",
		Long:    "export writes devmgrd's assignments for another device manager. docs/migration.md has all the steps.",
		Example: "  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run",
	}, newExportCheckpointCommand())
}

func newExportCheckpointCommand() *cobra.Command {
	return migration(&cobra.Command{
		Use:   "kubelet-checkpoint FILE",
		Short: "Write the assignments for the kubelet's device manager",
		Long: "kubelet-checkpoint writes devmgrd's state file as the checkpoint from which a kubelet's device manager starts.\n" +
			"Neither the kubelet nor devmgrd may be running; pods may. The entries of other resources in an existing checkpoint\n" +
			"stay, and the old file is kept next to the new one.",
		Example: "  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run\n" +
			"  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name),
	}, func(n migrate.Node, _ context.Context) error { return n.Export() })
}

// kubeletDir is the default of plugins.kubeletDir, for examples.
const kubeletDir = "/var/lib/kubelet/device-plugins"

// oneFile requires the path of one file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes the path of one file, but got %q; see %[1]s --help", cmd.CommandPath(), args)
	}
	return nil
}

// migration completes a command that moves a node by the kubelet's checkpoint.
func migration(cmd *cobra.Command, move func(migrate.Node, context.Context) error) *cobra.Command {
	cmd.Args = usage(oneFile)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, _, err := loadConfig(cmd)
		if err != nil {
			return err
		}
		file, err := filepath.Abs(args[0])
		if err != nil {
			return err
		}
		log := warnings(cmd)
		kube.RouteLogs(log)
		return move(migrate.Node{Config: c, File: file, DryRun: flagValue(cmd.Flags().GetBool, "dry-run"), Out: cmd.OutOrStdout(), Log: log}, cmd.Context())
	}
	cmd.Flags().Bool("dry-run", false, "change nothing, and print the planned changes")
	return withConfigFlags(cmd)
}
