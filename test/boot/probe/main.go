// Command probe tries what the AppArmor profile of devmgrd denies and reports what came of each attempt, one to a line: its name and "ok"
// or the error. The test runs it in the place of devmgrd's binary.
package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// attempts change nothing that lasts: their files are in the directories that the arguments name.
func attempts(target int) []struct {
	name string
	try  func() error
} {
	return []struct {
		name string
		try  func() error
	}{
		{"exec", func() error { return start("/bin/true") }},
		{"exec-self", func() error { return start("/usr/bin/devmgrd") }},
		{"write-etc", func() error { return write("/etc/probe") }},
		{"write-etc-devmgrd", func() error { return write("/etc/devmgrd/probe") }},
		{"write-root-home", func() error { return write("/root/probe") }},
		{"write-srv", func() error { return write("/srv/probe") }},
		{"write-cron", func() error { return write("/var/spool/probe") }},
		{"write-kubelet-plugins", func() error { return write("/var/lib/kubelet/device-plugins/probe.sock") }},
		{"mkdir-etc", func() error { return mkdir("/etc/probe.d") }},
		{"read-shadow", func() error { return read("/etc/shadow") }},
		{"read-ssh", func() error { return read("/root/.ssh/id_probe") }},
		{"read-memory", func() error { return read(fmt.Sprintf("/proc/%d/environ", target)) }},
		{"open-device", func() error { return read("/dev/kmsg") }},
		{"open-disk", func() error { return read("/dev/nvme0n1") }},
		{"mount", func() error { return unix.Mount("probe", "/mnt", "tmpfs", 0, "") }},
		{"ptrace", func() error { return trace(target) }},
		{"signal", func() error { return unix.Kill(target, unix.SIGCONT) }},
		{"raw-socket", func() error { return open(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) }},
		{"packet-socket", func() error { return open(unix.AF_PACKET, unix.SOCK_RAW, 0) }},
		{"chown", func() error { return os.Chown("/var/lib/devmgrd", 1, 1) }},
		{"sysctl", func() error { return os.WriteFile("/proc/sys/kernel/core_pattern", []byte("core\n"), 0o644) }},
		{"unload", func() error { return opened(os.OpenFile("/sys/kernel/security/apparmor/.remove", os.O_WRONLY, 0)) }},
	}
}

// allowed are controls: the profile lets devmgrd do these.
func allowed(target int) []struct {
	name string
	try  func() error
} {
	return []struct {
		name string
		try  func() error
	}{
		{"allowed-state", func() error { return write("/var/lib/devmgrd/probe") }},
		{"allowed-mount-source", func() error { return os.MkdirAll(fmt.Sprintf("/srv/probe.d/%d/deep", target), 0o755) }},
		{"allowed-stat", func() error { _, err := os.Stat("/root/probe.d"); return absent(err) }},
	}
}

func main() {
	target := 0
	if len(os.Args) != 2 {
		return
	}
	if _, err := fmt.Sscan(os.Args[1], &target); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, a := range append(allowed(target), attempts(target)...) {
		if err := a.try(); err != nil {
			fmt.Printf("%s %v\n", a.name, err)
		} else {
			fmt.Printf("%s ok\n", a.name)
		}
	}
}

func write(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(path))
}

func read(path string) error {
	return opened(os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0))
}

func opened(file *os.File, err error) error {
	if err != nil {
		return err
	}
	return file.Close()
}

func absent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func open(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind, protocol)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// trace attaches to a process, which runs on.
func trace(pid int) error { return unix.PtraceSeize(pid) }

// start runs a program with this one's own files, so that nothing is opened but the program.
func start(path string) error {
	process, err := os.StartProcess(path, []string{path}, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		return err
	}
	_, err = process.Wait()
	return err
}

func mkdir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Remove(path)
}
