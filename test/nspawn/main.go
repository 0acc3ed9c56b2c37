package nspawn

import (
	"context"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
)

// These variables carry what is made outside to the program inside.
const (
	insideVariable = "TESTMACHINE_INSIDE" // set: the program is in the machine
	baseVariable   = "TESTMACHINE_BASE"   // the base system's directory
	sourceVariable = "TESTMACHINE_SOURCE" // the checkout
)

// Options say what a machine has besides a Debian with systemd.
type Options struct {
	// Dir is the working directory of the program in the machine, below the checkout; the go command starts tests there.
	Dir string
	// Packages are Debian packages of the base system besides systemd's.
	Packages []string
	// Variables are environment variables that the program in the machine has too.
	Variables []string
	// ReadOnly and Writable are more of them. The value of each is a file or a directory outside, which the machine has at the
	// same path.
	ReadOnly, Writable []string
}

// Main runs the calling program in a machine and exits with what run returns there. Call it like cluster.Main, first of all:
// the functions in before run outside, where the network is.
func Main(run func() int, o Options, before ...func(context.Context) error) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(run())
	}
	cluster.Main(func() int {
		status, err := o.inMachine()
		if err != nil {
			fmt.Fprintln(os.Stderr, "nspawn:", err)
			return max(status, 1)
		}
		return status
	}, append([]func(context.Context) error{o.Build}, before...)...)
}

// Build builds Kubernetes and makes the base system, if the cache lacks them, and finds the checkout. Main calls it first of all; a program
// that runs others with Main may call it before.
func (o Options) Build(ctx context.Context) error {
	for _, f := range []func(context.Context) error{cluster.Needs(cluster.Kubernetes), o.findSource, o.buildBase} {
		if err := f(ctx); err != nil {
			return err
		}
	}
	return nil
}

// findSource finds the checkout: the program's working directory is o.Dir of it.
func (o Options) findSource(context.Context) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	source, found := strings.CutSuffix(dir, "/"+o.Dir)
	if !found {
		return fmt.Errorf("finding the checkout: the working directory %s is not %s of one", dir, o.Dir)
	}
	return os.Setenv(sourceVariable, source)
}

// buildBase makes the base system, if the cache has none.
func (o Options) buildBase(ctx context.Context) error {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "a Debian is booted with it", Missing: apt.Programs(map[string]string{"systemd-nspawn": "systemd-container"})})
	if err != nil {
		return err
	}
	base, err := debian.Base(ctx, o.Packages...)
	if err != nil {
		return err
	}
	return os.Setenv(baseVariable, base)
}

// Source is the checkout. It is known after [Options.Build], to the functions in before, and in the machine.
func Source() string { return os.Getenv(sourceVariable) }

// Nest prepares the machine's cgroups for a cluster. cluster.Start can be called in the machine then.
func Nest() error {
	run, err := cluster.CurrentRun()
	if err != nil {
		return err
	}
	// systemd-nspawn leaves them to its own systemd; runc and the kubelet need them.
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		left, right, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(right, "cgroup ") {
			if err := unix.Mount("", strings.Fields(left)[4], "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
				return fmt.Errorf("making %s writable: %w", strings.Fields(left)[4], err)
			}
		}
	}
	return run.Nest()
}
