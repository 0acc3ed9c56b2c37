package debian

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
	"github.com/devmgrd/devmgrd/test/lockfile"
)

// kernelPackage names Debian's newest kernel for virtual machines. It has AppArmor, SELinux, ext4 and NVMe built in.
const kernelPackage = "linux-image-cloud-amd64"

// A Kernel is Debian's newest for virtual machines.
type Kernel struct {
	Image   string // the file that a machine boots
	Modules string // the directory lib/modules, with the dependencies of the modules among each other
}

// FindKernel returns Debian's kernel, which it fetches if the cache has none.
func FindKernel(ctx context.Context) (Kernel, error) {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "the modules of a kernel are listed with it", Missing: apt.Programs(map[string]string{"depmod": "kmod"})})
	if err != nil {
		return Kernel{}, err
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return Kernel{}, err
	}
	dir := filepath.Join(cache, "debian-kernel")
	held, err := lockfile.Take(ctx, dir+".lock", nil)
	if err != nil {
		return Kernel{}, err
	}
	defer held.Close()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := fetchKernel(ctx, dir); err != nil {
			return Kernel{}, fmt.Errorf("fetching Debian's %s: %w", kernelPackage, err)
		}
	}
	found, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return Kernel{}, fmt.Errorf("looking for one kernel in %s: %q, %v; remove the directory and try again", dir, found, err)
	}
	return Kernel{Image: found[0], Modules: filepath.Join(dir, "lib", "modules")}, nil
}

// fetchKernel unpacks the kernel's package.
func fetchKernel(ctx context.Context, dir string) error {
	making := dir + ".making"
	if err := errors.Join(os.RemoveAll(making), os.MkdirAll(making, 0o755)); err != nil {
		return err
	}
	if err := download(ctx, making); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(making, "*.deb"))
	if err != nil || len(packages) != 1 {
		return fmt.Errorf("apt-get download left %q, %v", packages, err)
	}
	if _, err := Output(ctx, making, "dpkg-deb", "--extract", packages[0], making); err != nil {
		return err
	}
	versions, err := os.ReadDir(filepath.Join(making, "lib", "modules"))
	if err != nil || len(versions) != 1 {
		return fmt.Errorf("the package has modules of %d kernels, %v", len(versions), err)
	}
	if _, err := Output(ctx, making, "depmod", "--basedir", making, versions[0].Name()); err != nil {
		return err
	}
	return errors.Join(os.Remove(packages[0]), os.Rename(making, dir))
}

// download puts the kernel's package into a directory. The package that is named depends on the one of the newest version.
func download(ctx context.Context, dir string) error {
	turn, err := apt.TakeTurn(ctx)
	if err != nil {
		return err
	}
	defer turn.Close()
	if _, err := Output(ctx, dir, "apt-get", "update"); err != nil {
		return err
	}
	shown, err := Output(ctx, dir, "apt-cache", "show", "--no-all-versions", kernelPackage)
	if err != nil {
		return err
	}
	newest := regexp.MustCompile(`(?m)^Depends: .*?\b(linux-image-[^ ,]+)`).FindStringSubmatch(shown)
	if newest == nil {
		return fmt.Errorf("it names no kernel:\n%s", shown)
	}
	_, err = Output(ctx, dir, "apt-get", "download", newest[1])
	return err
}

// Output runs a program in a directory and returns what it prints. An error has that too.
func Output(ctx context.Context, dir string, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
	}
	return string(out), nil
}
