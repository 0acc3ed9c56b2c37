//go:build e2e

package mac

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
)

// unit starts the test when the machine is up, and powers the machine off when the test has ended.
const unit = `[Unit]
Description=the test
After=multi-user.target
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
Environment=` + insideVariable + `=yes HOME=/root DEBIAN_FRONTEND=noninteractive
WorkingDirectory=` + payload + `
ExecStart=` + payload + `/mac.test %s
ExecStopPost=/bin/sh -c 'echo "` + endMark + `$EXIT_STATUS"'
StandardOutput=file:/dev/ttyS1
StandardError=inherit
`

// makeImage makes the machine's file system: Debian, the package, and the test.
func makeImage(ctx context.Context, dir string) (string, error) {
	base, err := debian.Base(ctx, "apparmor")
	if err != nil {
		return "", err
	}
	root, image := filepath.Join(dir, "root"), filepath.Join(dir, "image")
	if _, err := debian.Output(ctx, dir, "cp", "--archive", base, root); err != nil {
		return "", err
	}
	if err := bring(ctx, root); err != nil {
		return "", err
	}
	_, err = debian.Output(ctx, dir, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root, image, "1500M")
	return image, errors.Join(err, os.RemoveAll(root))
}

// bring puts the test and what it needs into the machine's file system.
func bring(ctx context.Context, root string) error {
	into := filepath.Join(root, payload)
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	source, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	if _, err := debian.Output(ctx, source, "make", "--no-print-directory", "deb", "VERSION=v0.9.0", "DIST="+into); err != nil {
		return err
	}
	probe := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(into, "probe"), "./test/mac/probe")
	probe.Dir, probe.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Errorf("building the probe: %w\n%s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if _, err := debian.Output(ctx, source, "cp", self, filepath.Join(into, "mac.test")); err != nil {
		return err
	}
	var args []string
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.testlogfile") && !strings.HasPrefix(a, "-test.gocoverdir") {
			args = append(args, a)
		}
	}
	etc := filepath.Join(root, "etc")
	unitFile := filepath.Join(etc, "systemd", "system", "mac-test.service")
	return errors.Join(
		os.RemoveAll(filepath.Join(into, "stage")),
		os.WriteFile(filepath.Join(etc, "hostname"), []byte(cluster.NodeName+"\n"), 0o644),
		os.WriteFile(filepath.Join(etc, "hosts"), []byte("127.0.0.1 localhost "+cluster.NodeName+"\n"), 0o644),
		os.WriteFile(unitFile, fmt.Appendf(nil, unit, strings.Join(args, " ")), 0o644),
		os.Symlink("../mac-test.service", filepath.Join(etc, "systemd", "system", "multi-user.target.wants", "mac-test.service")),
	)
}
