package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/lockfile"
)

// The base system. Its name in the cache has all that decides what is in it, but for Debian's point releases.
const suite = "bookworm"

var included = []string{"systemd", "systemd-sysv", "dbus"}

// Base returns the directory of a Debian with systemd and the packages, and makes it if the cache has none: some 40 seconds and
// 250 MB, once. Callers only read it.
func Base(ctx context.Context, additional ...string) (string, error) {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "a Debian is made with it", Missing: apt.Programs(map[string]string{"debootstrap": "debootstrap"})})
	if err != nil {
		return "", err
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return "", err
	}
	packages := slices.Concat(included, additional)
	base := filepath.Join(cache, "debian-"+suite+"-"+strings.Join(packages, "-"))
	held, err := lockfile.Take(ctx, base+".lock", nil) // another run may be making it
	if err != nil {
		return "", err
	}
	defer held.Close()
	if _, err := os.Stat(base); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintf(os.Stderr, "making a Debian %s to install on (about 40 seconds the first time)\n", suite)
		began := time.Now()
		if err := bootstrap(ctx, base, packages); err != nil {
			return "", err
		}
		fmt.Fprintf(os.Stderr, "made Debian %s in %s\n", suite, time.Since(began).Round(time.Second/10))
	}
	return base, nil
}

// bootstrap makes the base system elsewhere, and renames it when it is complete.
func bootstrap(ctx context.Context, base string, packages []string) error {
	making := base + ".making"
	if err := os.RemoveAll(making); err != nil { // an earlier run was interrupted here
		return err
	}
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(packages, ","), suite, making)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // it unmounts what it has mounted
	cmd.WaitDelay = 10 * time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(making, "debootstrap", "debootstrap.log"))
		return errors.Join(fmt.Errorf("debootstrap %s, which needs Debian's archive: %w\n%s\n%s", suite, err, out, log), os.RemoveAll(making))
	}
	if err := os.RemoveAll(filepath.Join(making, "var/cache/apt/archives")); err != nil {
		return err
	}
	return os.Rename(making, base)
}

// Text returns what is in a file, or why that is not known.
func Text(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(content)
}
