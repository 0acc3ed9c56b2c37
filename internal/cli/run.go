package cli

import (
	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/daemon"
)

// newRunCommand returns "devmgrd run".
func newRunCommand() *cobra.Command {
	return withConfigFlags(&cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: "run is the daemon. It serves until it receives SIGTERM or SIGINT. Then it stops cleanly: running containers and the\n" +
			"Node's capacity stay unchanged.",
		Example: "  devmgrd run\n  devmgrd run --config /etc/devmgrd/config.yaml --set log.level=debug",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log, end := daemon.NewLog(c.Log, cmd.ErrOrStderr())
			defer end()
			return daemon.Run(cmd.Context(), c, log)
		},
	})
}
