package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// describe leaves out what it cannot read: a container may be as restricted as its pod asked for.
func describe() report.Report {
	return report.Report{
		Args:    os.Args,
		Env:     environment(),
		Devices: devices("/dev"),
		Mounts:  mounts(),
		Allowed: lines("/sys/fs/cgroup/devices/devices.list"),
	}
}

func environment() map[string]string {
	env := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

func devices(root string) []report.Device {
	found := []report.Device{}
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeDevice == 0 {
			return nil
		}
		var stat syscall.Stat_t
		if syscall.Lstat(path, &stat) != nil {
			return nil
		}
		kind := "b"
		if stat.Mode&syscall.S_IFMT == syscall.S_IFCHR {
			kind = "c"
		}
		major, minor := number(stat.Rdev)
		found = append(found, report.Device{
			Path: path, Type: kind, Major: major, Minor: minor,
			Mode: stat.Mode & 0o7777, UID: stat.Uid, GID: stat.Gid,
		})
		return nil
	})
	return found
}

// number takes a device number apart as glibc's major() and minor() do.
func number(dev uint64) (major, minor uint32) {
	major = uint32(dev>>8)&0xfff | uint32(dev>>32)&^0xfff
	minor = uint32(dev)&0xff | uint32(dev>>12)&^0xff
	return major, minor
}

// mounts parses lines like
//
//	36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw,errors=continue
func mounts() []report.Mount {
	found := []report.Mount{}
	for _, line := range lines("/proc/self/mountinfo") {
		left, right, ok := strings.Cut(line, " - ")
		mount, super := strings.Fields(left), strings.Fields(right)
		if !ok || len(mount) < 6 || len(super) < 2 {
			continue
		}
		found = append(found, report.Mount{
			Root: unescape(mount[3]), Point: unescape(mount[4]), Options: strings.Split(mount[5], ","),
			FSType: super[0], Source: unescape(super[1]),
		})
	}
	return found
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

func lines(path string) []string {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	content = bytes.TrimSpace(content)
	if len(content) == 0 {
		return nil
	}
	return strings.Split(string(content), "\n")
}
