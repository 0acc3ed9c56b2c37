package cluster

import (
	"context"
	"io"
	"os/exec"

	"github.com/devmgrd/devmgrd/test/apt"
)

// ensureSeccomp looks for the C library that runc is linked with, and installs it where that is simple.
func ensureSeccomp(ctx context.Context, log io.Writer) error {
	return apt.Ensure(ctx, log, apt.Need{
		For: "runc is built with the headers of libseccomp, and pkg-config to find them",
		Missing: func() []string {
			if exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run() == nil {
				return nil
			}
			return []string{"libseccomp-dev", "pkg-config"}
		},
		Anywhere: "dnf install libseccomp-devel pkgconf (Fedora)",
	})
}
