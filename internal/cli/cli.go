// Package cli has devmgrd's commands: their flags, their calls to the daemon, and their output.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/internal/visible"
)

// Run executes one command line and returns the exit status: 0 for success, 2 for a wrong command line or configuration
// (nothing was started), 1 for all other errors. SIGTERM and SIGINT end the command's context.
func Run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	root := Root()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err != nil {
		report(stderr, err)
	}
	return exitCode(err)
}

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode maps an error to the exit status: 0 for none, 2 for a wrong command line or configuration (nothing was
// started), 1 for all other errors.
func exitCode(err error) int {
	var usage usageError
	var wrong *config.Error
	var rules *pluginrules.FileError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.As(err, &wrong), errors.As(err, &rules):
		return 2
	default:
		return 1
	}
}

// report prints the error, each mistake of a configuration on its own line. The text may come from the daemon or another program.
func report(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, "devmgrd: "+visible.Text(line))
	}
}
