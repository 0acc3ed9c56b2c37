//go:build e2e

package mac

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/machine"
)

// kernelPackage names Debian's newest kernel for virtual machines. It has AppArmor, ext4 and NVMe built in.
const kernelPackage = "linux-image-cloud-amd64"

// findKernel returns Debian's kernel, which it fetches if the cache has none.
func findKernel(ctx context.Context) (string, error) {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "a machine that enforces AppArmor is emulated with it",
		Missing: apt.Programs(map[string]string{"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"})})
	if err != nil {
		return "", err
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, kernelPackage)
	held, err := machine.LockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer held.Close()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := fetchKernel(ctx, dir); err != nil {
			return "", fmt.Errorf("fetching Debian's %s: %w", kernelPackage, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("looking for one kernel in %s: %q, %v; remove the directory and try again", dir, found, err)
	}
	return found[0], nil
}

// fetchKernel unpacks the kernel's package. The package that is named depends on the one of the newest version.
func fetchKernel(ctx context.Context, dir string) error {
	making := dir + ".making"
	if err := errors.Join(os.RemoveAll(making), os.MkdirAll(making, 0o755)); err != nil {
		return err
	}
	if _, err := output(ctx, making, "apt-get", "update"); err != nil {
		return err
	}
	shown, err := output(ctx, making, "apt-cache", "show", "--no-all-versions", kernelPackage)
	if err != nil {
		return err
	}
	newest := regexp.MustCompile(`(?m)^Depends: .*?\b(linux-image-[^ ,]+)`).FindStringSubmatch(shown)
	if newest == nil {
		return fmt.Errorf("it names no kernel:\n%s", shown)
	}
	if _, err := output(ctx, making, "apt-get", "download", newest[1]); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(making, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("apt-get download left %q, %v", packages, err)
	}
	if _, err := output(ctx, making, "dpkg-deb", "--extract", packages[0], making); err != nil {
		return err
	}
	return errors.Join(os.Remove(packages[0]), os.RemoveAll(filepath.Join(making, "lib")), os.Rename(making, dir))
}

// output runs a program and returns what it prints.
func output(ctx context.Context, dir string, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
	}
	return string(out), nil
}

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
	base, err := machine.Base(ctx, "apparmor")
	if err != nil {
		return "", err
	}
	root, image := filepath.Join(dir, "root"), filepath.Join(dir, "image")
	if _, err := output(ctx, dir, "cp", "--archive", base, root); err != nil {
		return "", err
	}
	if err := bring(ctx, root); err != nil {
		return "", err
	}
	_, err = output(ctx, dir, "mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root, image, "1500M")
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
	if _, err := output(ctx, source, "make", "--no-print-directory", "deb", "VERSION=v0.9.0", "DIST="+into); err != nil {
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
	if _, err := output(ctx, source, "cp", self, filepath.Join(into, "mac.test")); err != nil {
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
