package cli

import (
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/daemon"
)

// newConfigCommand returns "devmgrd config".
func newConfigCommand() *cobra.Command {
	return withConfigFlags(&cobra.Command{
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
	})
}

// withConfigFlags adds the flags that loadConfig reads.
func withConfigFlags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().String("config", "", "configuration `file` (default "+config.DefaultFile+", which need not exist)")
	cmd.Flags().StringArray("set", nil, "set one `key=value`, such as log.level=debug; may be repeated")
	return cmd
}

// loadConfig reads the configuration for a command that has the flags of withConfigFlags. The error holds every
// mistake at once and leads to exit status 2. Deprecated keys are logged.
func loadConfig(cmd *cobra.Command) (config.Config, config.Sources, error) {
	var deprecated []config.Mistake
	c, from, err := config.Load(config.Options{
		File: flagValue(cmd.Flags().GetString, "config"), Set: flagValue(cmd.Flags().GetStringArray, "set"), Environ: os.Environ(),
		Warn: func(m config.Mistake) { deprecated = append(deprecated, m) },
	})
	if err == nil && len(deprecated) > 0 {
		log, end := daemon.NewLog(c.Log, cmd.ErrOrStderr())
		defer end()
		warnDeprecated(log, deprecated)
	}
	return c, from, err
}

func warnDeprecated(log *slog.Logger, keys []config.Mistake) {
	for _, m := range keys {
		log.Warn("deprecated configuration key", "key", m.Key, "source", m.Source, "problem", m.Problem, "remedy", m.Remedy)
	}
}
