package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
)

// newConfigCommand returns "devmgrd config".
func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print the configuration in force and the source of each value",
		Long: "config reads the configuration as \"devmgrd run\" does and prints it as YAML, with the source of each value\n" +
			"as a comment. What it prints can be used as a configuration file.",
		Example: "  devmgrd config\n  devmgrd config --config /tmp/new.yaml --set log.level=debug",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, from, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			return c.WriteYAML(cmd.OutOrStdout(), from)
		},
	}
	addConfigFlags(cmd)
	return cmd
}

// addConfigFlags adds the flags that loadConfig reads.
func addConfigFlags(cmd *cobra.Command) {
	cmd.Flags().String("config", "", "configuration `file` (default "+config.DefaultFile+", which need not exist)")
	cmd.Flags().StringArray("set", nil, "set one `key=value`, such as log.level=debug; may be repeated")
}

// loadConfig reads the configuration for a command that has the flags of addConfigFlags. The error holds every
// mistake at once and leads to exit status 2.
func loadConfig(cmd *cobra.Command) (config.Config, config.Sources, error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return config.Config{}, nil, err
	}
	set, err := cmd.Flags().GetStringArray("set")
	if err != nil {
		return config.Config{}, nil, err
	}
	return config.Load(config.Options{File: file, Set: set, Environ: os.Environ()})
}
