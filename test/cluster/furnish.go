package cluster

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// covered are the folders that stay readable as they are, while what is written to them goes to memory and is gone
// with the run.
var covered = []string{"/etc", "/opt", "/var/lib", "/var/log"}

// fresh are the folders that begin empty, whatever the machine has there: those of a node and its programs.
var fresh = []string{
	"/etc/cdi", "/etc/cni", "/etc/containerd", "/etc/containers", "/etc/crio", "/etc/devmgrd", "/etc/kubernetes", "/etc/nri",
	"/opt/cni", "/opt/containerd", "/opt/nri",
	"/var/lib/cni", "/var/lib/containerd", "/var/lib/containers", "/var/lib/crio", "/var/lib/devmgrd", "/var/lib/etcd", "/var/lib/kubelet", "/var/lib/nri",
	"/var/log/containers", "/var/log/pods",
}

// furnish makes new namespaces fit to live in. All that it makes lives in one tmpfs, mounted in the run's directory
// where it is invisible outside.
func furnish(r Run) error {
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := setHostname(NodeName); err != nil {
		return err
	}
	if err := loopbackUp(); err != nil {
		return err
	}

	memory := filepath.Join(r.Dir, "memory")
	if err := os.MkdirAll(memory, 0o755); err != nil {
		return err
	}
	if err := mount("devmgrd", memory, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	keptCache := filepath.Join(memory, "cache")
	if err := replace(keptCache, cache); err != nil {
		return err
	}
	for _, dir := range covered {
		if err := cover(dir, filepath.Join(memory, "covered", dir)); err != nil {
			return err
		}
	}
	for _, dir := range append(fresh, "/run") {
		empty := filepath.Join(memory, "fresh", dir)
		if err := os.MkdirAll(empty, 0o755); err != nil {
			return err
		}
		if err := replace(dir, empty); err != nil {
			return err
		}
	}
	if err := replaceTmp(filepath.Join(memory, "tmp")); err != nil {
		return err
	}
	if err := replace(cache, keptCache); err != nil { // it may be below a folder that is hidden now
		return err
	}
	// Volumes with mount propagation need shared mounts. They are shared among the run's processes only.
	return mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// cover lays a writable layer over a folder.
func cover(dir, layer string) error {
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("cover %s: %w", dir, err)
	}
	upper, work := filepath.Join(layer, "upper"), filepath.Join(layer, "work")
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return mount("devmgrd", dir, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work))
}

// replace mounts one folder in the place of another, which it makes if need be (in a layer of ours).
func replace(dir, by string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return mount(by, dir, "", unix.MS_BIND, "")
}

// replaceTmp lays a layer over /tmp, too. What the run has been started with can be written there: where an argument, a variable or the
// working directory leads to, such as the go command's directory. Each mount costs every container that is started, so no others are made.
func replaceTmp(layer string) error {
	machines := filepath.Join(layer, "machines")
	if err := os.MkdirAll(machines, 0o755); err != nil {
		return err
	}
	if err := mount("/tmp", machines, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := cover("/tmp", layer); err != nil {
		return err
	}
	if err := os.Chmod("/tmp", 0o1777); err != nil {
		return err
	}
	entries, err := os.ReadDir(machines)
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	named := strings.Join(slices.Concat(os.Args, os.Environ(), []string{dir}), "\n")
	for _, entry := range entries {
		path := filepath.Join("/tmp", entry.Name())
		if !strings.Contains(named, path) || entry.Type()&os.ModeSymlink != 0 {
			continue
		}
		if err := mount(filepath.Join(machines, entry.Name()), path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
	}
	return os.Setenv("TMPDIR", "/tmp")
}

func mount(source, target, kind string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", strings.Join(strings.Fields(kind+" on "+target), " "), err)
	}
	return nil
}

func setHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	return nil
}

// loopbackUp turns on the only interface of a new network namespace and adds the node's address.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("turn on the loopback interface: %w", err)
	}
	defer unix.Close(fd)

	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("turn on the loopback interface: %w", err)
	}

	alias, err := unix.NewIfreq("lo:node") // a label: the address joins that of lo
	if err != nil {
		return err
	}
	if err := alias.SetInet4Addr(net.ParseIP(nodeAddress).To4()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, alias); err != nil {
		return fmt.Errorf("give the loopback interface the address %s: %w", nodeAddress, err)
	}
	return nil
}

// unmountBelow detaches every mount strictly below a folder, the innermost first.
func unmountBelow(dir string) error {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(string(content), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		fields := strings.Fields(lines[i])
		if len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			_ = unix.Unmount(fields[4], unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		}
	}
	return nil
}
