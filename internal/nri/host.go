package nri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// A node is a device node of the host. Its number can change when a driver is loaded again, so it is read for each container.
type node struct {
	number
	path        string // in the container
	mode        uint32 // without the bits of the file's type
	uid, gid    uint32
	permissions string
}

// A number is the kernel's identity of a device, which may have several nodes.
type number struct {
	kind         string // "c" or "b"
	major, minor int64
}

// Names that containerd leaves out of a directory of devices.
var notDevices = map[string]bool{
	"pts": true, "shm": true, "fd": true, "mqueue": true, ".lxc": true, ".lxd-mounts": true, ".udev": true,
}

// maxEntries bounds a directory of devices, which devmgrd reads while the runtime waits.
const maxEntries = 4096

// hostDevices are the device nodes at a path of the host: one, or those of a directory.
type hostDevices struct {
	real  string // the path without links
	path  string // what the container sees it as, unless the plugin says otherwise
	nodes []node // their paths are below the place; "" is the place itself
}

// granted returns the device nodes that a container gets for a grant, under their paths in the container.
func (p hostDevices) granted(n device.Node) []node {
	inside := n.ContainerPath
	if inside == "" {
		inside = p.path
	}
	all := slices.Clone(p.nodes)
	for i := range all {
		all[i].permissions = n.Permissions
		if below := all[i].path; below == "" {
			all[i].path = inside
		} else {
			all[i].path = filepath.Join(inside, below)
		}
	}
	return all
}

// hostDevicesAt returns the device node at a path on the host, through symbolic links, or all nodes below a directory. containerd
// does the same for the kubelet's answer, but not for NRI's.
func hostDevicesAt(hostPath string) (hostDevices, error) {
	path, err := filepath.EvalSymlinks(hostPath)
	if err != nil {
		return hostDevices{}, missing("device", hostPath, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return hostDevices{}, missing("device", hostPath, err)
	}
	all := hostDevices{real: path, path: hostPath} // a link's name is that of what it leads to
	if info, err := os.Lstat(hostPath); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		all.path = path
	}
	if !info.IsDir() {
		found, ok := nodeOf(info)
		if !ok {
			return hostDevices{}, device.Refuse(device.HostDeviceMissing, nil, "%s is not a character or block device", hostPath)
		}
		all.nodes = []node{found}
		return all, nil
	}
	entries := 0
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		entries++
		switch {
		case err != nil:
			return err
		case entries > maxEntries:
			return fmt.Errorf("there are more than %d files in it", maxEntries)
		case entry.IsDir():
			if at != path && notDevices[entry.Name()] {
				return fs.SkipDir
			}
			return nil
		case entry.Name() == "console" || entry.Type()&fs.ModeDevice == 0:
			return nil
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has just gone
		}
		if err != nil {
			return err
		}
		below, err := filepath.Rel(path, at)
		if err != nil {
			return err
		}
		if found, ok := nodeOf(info); ok {
			found.path = below
			all.nodes = append(all.nodes, found)
		}
		return nil
	})
	if err != nil {
		return hostDevices{}, missing("directory of devices", hostPath, err)
	}
	return all, nil
}

func nodeOf(info fs.FileInfo) (node, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Rdev == 0 {
		return node{}, false // 0 is what hides a device from a confined process
	}
	n := node{mode: stat.Mode &^ syscall.S_IFMT, uid: stat.Uid, gid: stat.Gid}
	switch info.Mode() & (fs.ModeDevice | fs.ModeCharDevice) {
	case fs.ModeDevice | fs.ModeCharDevice:
		n.kind = "c"
	case fs.ModeDevice:
		n.kind = "b"
	default:
		return node{}, false
	}
	n.major, n.minor = int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	return n, true
}

// sourceAt resolves a mount source. It creates a missing source as a directory, as containerd does for the kubelet's answer.
func sourceAt(hostPath string) (string, error) {
	path, err := existing(hostPath)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := shareddir.Make(hostPath, 0o755); err != nil { // for all users, whatever the umask is
			return "", missing("mount source", hostPath, err)
		}
		return existing(hostPath)
	}
	return path, err
}

// wouldBe returns where a path leads on the host or, if it does not exist, where a directory of that path would be created.
func wouldBe(hostPath string) (string, error) {
	rest := ""
	for at := filepath.Clean(hostPath); ; at = filepath.Dir(at) {
		path, err := filepath.EvalSymlinks(at)
		switch {
		case err == nil:
			return filepath.Join(path, rest), nil
		case !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at):
			return "", missing("mount source", hostPath, err)
		}
		rest = filepath.Join(filepath.Base(at), rest)
	}
}

// existing resolves a mount source that has to exist.
func existing(hostPath string) (string, error) {
	path, err := filepath.EvalSymlinks(hostPath)
	if err != nil {
		return "", missing("mount source", hostPath, err)
	}
	return path, nil
}

func missing(what, path string, err error) error {
	return device.Refuse(device.HostDeviceMissing, err, "the %s %s that the device plugin granted cannot be used", what, path)
}
