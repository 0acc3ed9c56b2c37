package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// describe leaves out what it cannot read: a container may be as restricted as its pod asked for.
func describe(open []string) report.Report {
	return report.Report{
		Args:    os.Args,
		Env:     environment(),
		Environ: os.Environ(),
		Devices: devices("/dev"),
		Mounts:  mounts(),
		Files:   append(files("/"), files("/dev")...),
		Opened:  opened(open),
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

// files finds the files of the file system that a folder is in. What is mounted below it is left out.
func files(root string) []report.File {
	found := []report.File{}
	var fileSystem uint64
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		var stat syscall.Stat_t
		if syscall.Lstat(path, &stat) != nil {
			return nil
		}
		if path == root {
			fileSystem = stat.Dev
		}
		if stat.Dev != fileSystem {
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		file := report.File{Path: path, Mode: stat.Mode, UID: stat.Uid, GID: stat.Gid}
		if entry.Type()&fs.ModeDevice != 0 {
			major, minor := number(stat.Rdev)
			file.Number = fmt.Sprintf("%d:%d", major, minor)
		}
		file.Link, _ = os.Readlink(path) // empty if it is none
		found = append(found, file)
		return nil
	})
	return found
}

func opened(paths []string) []report.Opened {
	var all []report.Opened
	for _, path := range paths {
		for _, how := range []string{"r", "w", "rw"} {
			result := report.Opened{Path: path, How: how}
			if err := openOnce(path, modes[how]); err != nil {
				result.Error = err.Error()
			}
			all = append(all, result)
		}
	}
	return all
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
			FSType: super[0], Source: unescape(super[1]), Peers: mount[6:],
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
