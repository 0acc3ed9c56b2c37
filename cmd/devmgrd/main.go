// Command devmgrd manages the devices of a Kubernetes node in place of the kubelet. Device plugins register with devmgrd,
// which assigns devices to containers, records the assignments and injects the devices.
//
// This package connects the other packages and controls their lifetime. It has no behaviour of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/devmgrd/devmgrd/config"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run executes one command line and returns the exit status. SIGTERM and SIGINT end the command's context.
func run(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	root := newRootCommand()
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
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage), errors.As(err, &wrong):
		return 2
	default:
		return 1
	}
}

// report prints the error, each mistake of a configuration on its own line. The text may come from the daemon or another program.
func report(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, "devmgrd: "+plain(line))
	}
}
