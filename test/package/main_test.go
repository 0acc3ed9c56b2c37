//go:build e2e

package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/lockfile"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/nspawn"
)

// Variables with directories: that of the packages, which are made outside, and that of a release which is tested.
const (
	packagesVariable = "TESTPACKAGE_PACKAGES"
	releaseVariable  = "RELEASE"
)

// The versions that are packaged. The older one comes first in a user's life.
var (
	older = "0.9.0"
	newer = "0.10.0" // not so if versions were compared as text
)

func TestMain(m *testing.M) {
	o := nspawn.Options{Dir: "test/package", ReadOnly: []string{packagesVariable}}
	if dir := os.Getenv(releaseVariable); dir != "" {
		charts, _ := filepath.Glob(filepath.Join(dir, "devmgrd-*.tgz"))
		if len(charts) != 1 {
			fmt.Fprintf(os.Stderr, "%s=%s is not what make release has made: its charts are %q\n", releaseVariable, dir, charts)
			os.Exit(2)
		}
		older = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(charts[0]), "devmgrd-"), ".tgz")
		newer = older + ".1"
		o.ReadOnly = append(o.ReadOnly, releaseVariable)
	}
	nspawn.Main(m.Run, o, node.Build, buildPackages)
}

// inUse is the lock on the packages' directory, which the machine sees. It ends with this process.
var inUse *os.File

// buildPackages makes both packages as a maintainer would, with make, and one of them twice: the same source makes the same
// bytes, wherever they are made. Of a release that is tested, the older one is there.
func buildPackages(ctx context.Context) error {
	cache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	if inUse, err = lockfile.Take(ctx, filepath.Join(cache, "packages.lock"), nil); err != nil {
		return err
	}
	dir := filepath.Join(cache, "packages")
	again := filepath.Join(cache, "packages-again")
	for _, d := range []string{dir, again} {
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	makes := []struct{ version, dir string }{{newer, dir}, {newer, again}, {older, dir}}
	release := os.Getenv(releaseVariable)
	if release != "" {
		makes = makes[:2]
	}
	for _, p := range makes {
		cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "deb", "VERSION=v"+p.version, "DIST="+p.dir)
		cmd.Dir = nspawn.Source()
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("make deb: %w\n%s", err, out)
		}
	}
	if err := same(deb(dir, newer), deb(again, newer)); err != nil {
		return err
	}
	if release != "" {
		from := deb(release, older)
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(from)), text, 0o644); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(again), os.Setenv(packagesVariable, dir))
}

// same says whether two packages that were made of the same source are the same, byte by byte.
func same(one, other string) error {
	a, err := os.ReadFile(one)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(other)
	if err != nil {
		return err
	}
	if !bytes.Equal(a, b) {
		return fmt.Errorf("%s and %s are not the same: diffoscope tells where", one, other)
	}
	return nil
}

// deb is the file of a version's package for this machine.
func deb(dir, version string) string {
	found, _ := filepath.Glob(filepath.Join(dir, "devmgrd_"+strings.ReplaceAll(version, "-", "~")+"_"+runtime.GOARCH+".deb"))
	return strings.Join(found, " ")
}
