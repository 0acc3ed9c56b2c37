package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// ensureSeccomp looks for the C library that runc is linked with, and installs it where that is simple: as root on
// a Debian system.
func ensureSeccomp(ctx context.Context, log io.Writer) error {
	found := func() bool { return exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run() == nil }
	if found() {
		return nil
	}
	const byHand = "apt-get install libseccomp-dev pkg-config (Debian), or dnf install libseccomp-devel pkgconf (Fedora)"
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return errors.New("runc needs the headers of libseccomp, and pkg-config to find them: " + byHand)
	}
	fmt.Fprintln(log, "installing libseccomp-dev and pkg-config, which runc is built with")
	for _, args := range [][]string{
		{"update"},
		{"install", "-y", "--no-install-recommends", "libseccomp-dev", "pkg-config"},
	} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w\n%s", args[0], err, lastLines(string(output), 20))
		}
	}
	if !found() {
		return errors.New("pkg-config does not find libseccomp although it is installed: " + byHand)
	}
	return nil
}
