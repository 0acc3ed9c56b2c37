// Command devmgrd manages the devices of a Kubernetes node in the kubelet's stead: device plugins register with it,
// and it decides, remembers and puts into effect which container gets which device.
//
// This package wires the rooms together and decides on their lifetime; it holds no behaviour of its own.
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

// run carries out one command line and returns the exit status. SIGTERM and SIGINT end the command's context.
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

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exitCode maps an error to the exit status: 0 for none, 2 for a wrong command line or configuration, where nothing
// was started, 1 for everything else.
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

// report prints the error, each mistake of a configuration on a line of its own. The daemon and others may have a part in it.
func report(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintln(w, "devmgrd: "+plain(line))
	}
}
