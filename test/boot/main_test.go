//go:build e2e

package boot

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
	"github.com/devmgrd/devmgrd/test/lockfile"
	"github.com/devmgrd/devmgrd/test/machine"
	"github.com/devmgrd/devmgrd/test/node"
)

// Where what is built outside is, for the tests inside.
const (
	packageVariable = "TESTBOOT_PACKAGE"
	pluginVariable  = "TESTBOOT_PLUGIN"
	probeVariable   = "TESTBOOT_PROBE"
	policyVariable  = "TESTBOOT_POLICY"
)

var onSELinux = flag.Bool("selinux", false, "run on a machine that enforces SELinux, and not AppArmor")

func TestMain(m *testing.M) {
	flag.Parse()
	system := machine.AppArmor
	if *onSELinux {
		system = machine.SELinux
	}
	machine.Main(system, func() int {
		status := m.Run()
		if err := stopShared(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			status = max(status, 1)
		}
		return status
	}, cluster.Needs(cluster.Consumer), node.Build, build)
}

var inUse *os.File // the lock on what is built; it ends with this process

// build makes the package as a maintainer would, and the programs of the tests.
func build(ctx context.Context) error {
	cache, err := cluster.CacheDir()
	if err != nil {
		return err
	}
	dir := filepath.Join(cache, "boot")
	if inUse, err = lockfile.Take(ctx, dir+".lock", nil); err != nil {
		return err
	}
	source, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if _, err := debian.Output(ctx, source, "make", "--no-print-directory", "deb", "VERSION=v0.9.0", "DIST="+dir); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("make deb left %q, %v", packages, err)
	}
	making := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./test/boot/plugin", "./test/boot/policy", "./test/boot/probe")
	making.Dir, making.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := making.CombinedOutput(); err != nil {
		return fmt.Errorf("building the programs of the tests: %w\n%s", err, out)
	}
	return errors.Join(os.Setenv(packageVariable, packages[0]),
		os.Setenv(pluginVariable, filepath.Join(dir, "plugin")), os.Setenv(policyVariable, filepath.Join(dir, "policy")),
		os.Setenv(probeVariable, filepath.Join(dir, "probe")))
}
