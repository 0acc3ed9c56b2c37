package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A node is a device node as it is on the host at this moment. Numbers change when a driver is loaded anew, so they are
// read at each creation of a container.
type node struct {
	number
	path        string // in the container
	mode        uint32 // without the bits of the file's type
	uid, gid    uint32
	permissions string
}

// A number is what the kernel knows a device by, whatever the names of its nodes.
type number struct {
	kind         string // "c" or "b"
	major, minor int64
}

// Names that containerd leaves out of a directory of devices.
var notDevices = map[string]bool{
	"pts": true, "shm": true, "fd": true, "mqueue": true, ".lxc": true, ".lxd-mounts": true, ".udev": true,
}

// maxEntries bounds a directory of devices: walking it holds up every container of the node.
const maxEntries = 4096

// nodes finds what a granted node stands for: one device node, through a symbolic link or not, or all those below a
// directory. It is what containerd does with the kubelet's answer, which does not happen to what comes through NRI.
func nodes(ctx context.Context, n device.Node) ([]node, error) {
	path, err := filepath.EvalSymlinks(n.HostPath)
	if err != nil {
		return nil, missing("device", n.HostPath, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, missing("device", n.HostPath, err)
	}
	inside := n.ContainerPath
	if inside == "" { // as on the host, where a link's name is that of what it leads to
		inside = n.HostPath
		if info, err := os.Lstat(n.HostPath); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			inside = path
		}
	}
	if !info.IsDir() {
		found, ok := nodeOf(info, inside, n.Permissions)
		if !ok {
			return nil, device.Refuse(device.HostDeviceMissing, nil, "%s is not a character or block device", n.HostPath)
		}
		return []node{found}, nil
	}
	var all []node
	entries := 0
	err = filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		switch entries++; {
		case err != nil:
			return err
		case entries > maxEntries:
			return fmt.Errorf("there are more than %d files in it", maxEntries)
		case ctx.Err() != nil:
			return ctx.Err()
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
		if found, ok := nodeOf(info, filepath.Join(inside, below), n.Permissions); ok {
			all = append(all, found)
		}
		return nil
	})
	if err != nil {
		return nil, missing("directory of devices", n.HostPath, err)
	}
	return all, nil
}

func nodeOf(info fs.FileInfo, path, permissions string) (node, bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Rdev == 0 {
		return node{}, false // 0 is what hides a device from a confined process
	}
	n := node{path: path, permissions: permissions, mode: stat.Mode &^ syscall.S_IFMT, uid: stat.Uid, gid: stat.Gid}
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

// source finds what a granted mount shows: symbolic links are resolved, and a missing source is made as a directory, as
// containerd does with the kubelet's answer.
func source(m device.Mount) (string, error) {
	path, err := filepath.EvalSymlinks(m.HostPath)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(m.HostPath, 0o755); err != nil {
			return "", missing("mount source", m.HostPath, err)
		}
		path, err = filepath.EvalSymlinks(m.HostPath)
	}
	if err != nil {
		return "", missing("mount source", m.HostPath, err)
	}
	return path, nil
}

func missing(what, path string, err error) error {
	return device.Refuse(device.HostDeviceMissing, err, "the %s %s that the device plugin granted cannot be used", what, path)
}
