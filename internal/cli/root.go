package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// Root returns devmgrd with all its commands.
func Root() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "devmgrd",
		Short: "Manage the devices of a Kubernetes node",
		Long: "devmgrd replaces the kubelet's device manager on a node. Device plugins register with devmgrd, which assigns\n" +
			"devices to containers, records the assignments and injects the devices.",
		Example: "  devmgrd run --config /etc/devmgrd/config.yaml\n  devmgrd config",
		// report prints an error once, without the help text, which would bury it.
		SilenceErrors: true,
		SilenceUsage:  true,
	}, newRunCommand(), newConfigCommand(), newImportCommand(), newExportCommand(), newVersionCommand(),
		newStatusCommand(), newPluginsCommand(), newDevicesCommand(), newWatchCommand(), newAssignmentsCommand(),
		newExplainCommand(), newCordonCommand(), newUncordonCommand(), newDrainCommand(), newCheckCommand(),
		newRulesCommand(), newForgetCommand(), newHistoryCommand(), newStoreCommand(), newDeviceClassCommand(), newOpenersCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	addCompletions(root)
	return root
}

// group completes a command that only has subcommands: without one, it prints its help.
func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.Args = usage(noSuchCommand)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	cmd.AddCommand(commands...)
	return cmd
}

// flagValue returns the value of a flag with a getter such as cmd.Flags().GetString. The command must have the flag.
func flagValue[T any](get func(name string) (T, error), name string) T {
	value, err := get(name)
	if err != nil {
		panic(err) // there is no such flag
	}
	return value
}

// usage marks errors of check as mistakes in the command line.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}

// noSuchCommand refuses an unknown command.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	remedy := "see devmgrd --help"
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		remedy = "did you mean " + near[0] + "?"
	}
	return fmt.Errorf("there is no command %q; %s", args[0], remedy)
}

// noArguments refuses arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no argument, but got %q; see %s --help", cmd.CommandPath(), args[0], cmd.CommandPath())
	}
	return nil
}
