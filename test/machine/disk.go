package machine

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
	"github.com/devmgrd/devmgrd/test/lockfile"
)

// diskSize is what the file system of the machine has, of which little is used.
const diskSize = "6G"

// fileSystem makes it complete at once, so that no kernel thread completes it in the first minutes after each boot.
const fileSystem = "lazy_itable_init=0,lazy_journal_init=0"

// The programs of test/cluster that a node has, and where.
var programs = []struct {
	in    string
	names []string
}{
	{"/usr/local/bin", []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "kubelet"}},
	{cluster.CNIDir, []string{"ptp", "loopback", "host-local"}},
}

// The units of a node, as their projects ship them, apart from paths.
var (
	//go:embed files/containerd.service
	containerdUnit string
	//go:embed files/kubelet.service
	kubeletUnit string
	//go:embed files/node.network
	network string
)

// A disk is what machines begin with.
type disk struct {
	Image  string // the file system; only read
	Kernel string
	Args   []string // words for the kernel's command line
	Key    string   // the private key of root's SSH
}

// prepare makes the disk, unless the cache has it.
func prepare(ctx context.Context, system System) (disk, error) {
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "a machine is made and run with it", Missing: apt.Programs(map[string]string{
		"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "mke2fs": "e2fsprogs", "ssh": "openssh-client", "ip": "iproute2"})})
	if err != nil {
		return disk{}, err
	}
	tools, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return disk{}, err
	}
	kernel, err := debian.FindKernel(ctx)
	if err != nil {
		return disk{}, err
	}
	base, err := debian.Base(ctx, system.packages...)
	if err != nil {
		return disk{}, err
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return disk{}, err
	}
	files := files()
	maps.Copy(files, system.files)
	dir := filepath.Join(cache, "machine-"+recipe(system, tools, kernel, base, files))
	held, err := lockfile.Take(ctx, dir+".lock", nil)
	if err != nil {
		return disk{}, err
	}
	defer held.Close()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(os.Stderr, "making the disk of a machine")
		began := time.Now()
		if err := makeDisk(ctx, dir, tools, kernel, base, files, system.finish); err != nil {
			return disk{}, fmt.Errorf("making the disk of a machine: %w", err)
		}
		fmt.Fprintf(os.Stderr, "made the disk of a machine in %s\n", time.Since(began).Round(time.Second/10))
	}
	return disk{Image: filepath.Join(dir, "disk"), Kernel: kernel.Image, Args: system.kernel, Key: filepath.Join(dir, "key")}, nil
}

// files are the machine's that no package has, by path.
func files() map[string]string {
	const units = "etc/systemd/system/"
	return map[string]string{
		"etc/hostname":                          cluster.NodeName + "\n",
		"etc/hosts":                             "127.0.0.1 localhost " + cluster.NodeName + "\n",
		"etc/machine-id":                        "", // the first boot makes one
		units + "containerd.service":            containerdUnit,
		units + "kubelet.service":               kubeletUnit,
		"etc/systemd/network/10-node.network":   strings.NewReplacer("ADDRESS", cluster.MachineAddress, "GATEWAY", cluster.ControlPlaneAddress).Replace(network),
		"etc/systemd/system.conf.d/test.conf":   "[Manager]\nDefaultTimeoutStartSec=5min\n", // it may be emulated
		"etc/systemd/journald.conf.d/test.conf": "[Journal]\nStorage=persistent\n",
		"etc/ssh/sshd_config.d/test.conf":       "UseDNS no\nPrintMotd no\n",
	}
}

// wanted are the units that Debian's packages leave disabled, and the targets that want them here.
var wanted = map[string]string{
	"systemd-networkd.service":             "multi-user.target",
	"systemd-networkd-wait-online.service": "network-online.target",
}

// recipe is a sum over all that decides what is on the disk.
func recipe(system System, tools cluster.Tools, kernel debian.Kernel, base string, files map[string]string) string {
	h := sha256.New()
	fmt.Fprintln(h, system.recipe(), kernel.Image, base, diskSize, fileSystem, files)
	for _, p := range programs {
		for _, name := range p.names {
			fmt.Fprintln(h, p.in, tools.Path(name))
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:6])
}

// makeDisk makes the disk elsewhere, and renames it when it is complete.
func makeDisk(ctx context.Context, dir string, tools cluster.Tools, kernel debian.Kernel, base string, files map[string]string, finish string) error {
	making := dir + ".making"
	root, image, key := filepath.Join(making, "root"), filepath.Join(making, "disk"), filepath.Join(making, "key")
	if err := errors.Join(os.RemoveAll(making), os.MkdirAll(making, 0o700)); err != nil {
		return err
	}
	if _, err := debian.Output(ctx, making, "cp", "--archive", base, root); err != nil {
		return err
	}
	if _, err := debian.Output(ctx, making, "cp", "--archive", kernel.Modules, filepath.Join(root, "usr/lib")); err != nil {
		return err
	}
	for _, p := range programs {
		if err := os.MkdirAll(filepath.Join(root, p.in), 0o755); err != nil {
			return err
		}
		for _, name := range p.names {
			if _, err := debian.Output(ctx, making, "cp", tools.Path(name), filepath.Join(root, p.in, name)); err != nil {
				return err
			}
		}
	}
	for path, text := range files {
		if err := put(filepath.Join(root, path), text, 0o644); err != nil {
			return err
		}
	}
	for unit, target := range wanted {
		wants := filepath.Join(root, "etc/systemd/system", target+".wants")
		if err := errors.Join(os.MkdirAll(wants, 0o755), os.Symlink("/lib/systemd/system/"+unit, filepath.Join(wants, unit))); err != nil {
			return err
		}
	}
	if _, err := debian.Output(ctx, making, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "the tests of devmgrd", "-f", key); err != nil {
		return err
	}
	public, err := os.ReadFile(key + ".pub")
	if err != nil {
		return err
	}
	if err := put(filepath.Join(root, "root/.ssh/authorized_keys"), string(public), 0o600); err != nil {
		return err
	}
	if finish != "" {
		if _, err := debian.Output(ctx, making, "unshare", "--mount", "chroot", root, "bash", "-eu", "-o", "pipefail", "-c", finish); err != nil {
			return err
		}
	}
	if _, err := debian.Output(ctx, making, "mke2fs", "-q", "-t", "ext4", "-E", fileSystem, "-d", root, image, diskSize); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(root), os.Rename(making, dir))
}

func put(path, text string, mode os.FileMode) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode))
}
