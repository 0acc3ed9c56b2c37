package cli

import (
	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/daemon"
)

// newOpenersCommand returns "devmgrd openers".
func newOpenersCommand() *cobra.Command {
	return withConfigFlags(&cobra.Command{
		Use:   "openers",
		Short: "Look for processes that use devices, for the daemon",
		Long: "openers answers the daemon's question which processes have device nodes open or mapped (release.check: openers).\n" +
			"systemd starts it for a connection to devmgrd-openers.socket, and it ends 10 s after the last question. Without\n" +
			"systemd it listens on release.socket. It needs CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE, and the PID namespace of\n" +
			"the host.",
		Example: "  devmgrd openers\n  systemctl enable --now devmgrd-openers.socket",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log, end := daemon.NewLog(c.Log, cmd.ErrOrStderr())
			defer end()
			return daemon.RunOpeners(cmd.Context(), c.Release, log)
		},
	})
}
