// Package apt gets what tests need from Debian's packages.
package apt

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/lockfile"
)

// A Need is something that a test cannot do without.
type Need struct {
	For      string          // what it is for, as in "runc is built with it"
	Missing  func() []string // the Debian packages that are not there; none: all is well
	Anywhere string          // what to do on other systems; empty: nothing is known
}

// Ensure installs what is missing, where that is simple: as root on a Debian system. It says so on log. Tests that run at the same
// time take turns.
func Ensure(ctx context.Context, log io.Writer, n Need) error {
	lacks := n.Missing()
	if len(lacks) == 0 {
		return nil
	}
	byHand := fmt.Sprintf("%s: apt-get install %s", n.For, strings.Join(lacks, " "))
	if n.Anywhere != "" {
		byHand += " (Debian), or " + n.Anywhere
	}
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New(byHand)
	}
	turn, err := TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.Close()
	if lacks = n.Missing(); len(lacks) == 0 {
		return nil // another process was faster
	}
	fmt.Fprintf(log, "installing %s (%s)\n", strings.Join(lacks, " and "), n.For)
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"}, lacks...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s; apt-get %s: %w\n%s", byHand, args[0], err, output)
		}
	}
	if lacks = n.Missing(); len(lacks) > 0 {
		return fmt.Errorf("%s is installed, and still not found; %s", strings.Join(lacks, " and "), byHand)
	}
	return nil
}

// Program returns the path of a program that a test cannot do without, installing it as Ensure does. Where that cannot be the test
// fails and says what to do: what has not been checked is not to look as if it had.
func Program(t testing.TB, name, pkg, why string) string {
	t.Helper()
	need := Need{For: why, Missing: Programs(map[string]string{name: pkg})}
	if err := Ensure(t.Context(), t.Output(), need); err != nil {
		t.Fatal(err)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TakeTurn waits until no other process of the tests uses apt-get, which fails when two do. Closing the file ends the turn.
func TakeTurn(ctx context.Context) (*os.File, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return nil, err
	}
	return lockfile.Take(ctx, filepath.Join(dir, "devmgrd", "apt.lock"), nil)
}

// Programs returns the packages of those programs that are not in PATH.
func Programs(packages map[string]string) func() []string {
	return func() (missing []string) {
		for program, of := range packages {
			if _, err := exec.LookPath(program); err != nil {
				missing = append(missing, of)
			}
		}
		return missing
	}
}
