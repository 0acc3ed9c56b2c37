//go:build e2e

package boot

import (
	"strings"
	"testing"
)

// bystander is a Perl program with open files of kinds that have labels of their own in SELinux. It has no device.
const bystander = `open(A, "<", "/proc/kmsg") || die $!;
open(B, "<", "/proc/sys/vm/overcommit_memory") || die $!;
socket(C, 16, 3, 15) || die $!; # AF_NETLINK, SOCK_RAW, NETLINK_KOBJECT_UEVENT
socket(D, 16, 3, 9) || die $!; # NETLINK_AUDIT
socket(E, 38, 5, 0) || die $!; # AF_ALG, SOCK_SEQPACKET
my $parameters = "\0" x 120;
syscall(425, 8, $parameters) > 0 || die $!; # io_uring_setup
syscall(323, 1) > 0 || die $!; # userfaultfd, for user mode only
my $name = "bystander";
syscall(319, $name, 0) > 0 || die $!; # memfd_create
open(F, ">", "/run/bystander") || die $!;
sleep 3600;
`

// A service of the host has a device of a pod that ends. The next pod gets the device when the service has closed it and the vendor's
// command has succeeded; systemd starts both devmgrd openers and the command. The files of a process without a device do not matter.
func TestRelease_OpenersAndCommand_NextPodWaitsForBoth(t *testing.T) {
	h := start(t)
	h.driver()
	h.types("cp /etc/devmgrd/config.yaml /root/")
	h.must(h.machine.Put(h.ctx, map[string]string{
		"/etc/devmgrd/config.yaml": "release:\n  check: {vendor.example/*: openers}\n  command: {vendor.example/gpu: /usr/local/sbin/vendor-reset --soft}\n",
		"/root/bystander.pl":       bystander,
		"/usr/local/sbin/vendor-reset": `#!/bin/bash
echo "$1 $DEVMGRD_RESOURCE $DEVMGRD_DEVICES $DEVMGRD_NODES $DEVMGRD_POD" >> /run/vendor-reset
sleep $(cat /run/vendor-reset-sleep)
exit $(cat /run/vendor-reset-exit)
`}))
	h.types("chmod 755 /usr/local/sbin/vendor-reset; echo 0 > /run/vendor-reset-exit; echo 0 > /run/vendor-reset-sleep; systemctl enable --now devmgrd-openers.socket; systemctl restart devmgrd")
	h.cleanup(func() {
		h.tries("systemctl stop holder") // it is gone, unless the test has failed
		h.types(`systemctl stop bystander; cp /root/config.yaml /etc/devmgrd/ # over the other file, which has the label for SELinux
rm -f /root/config.yaml /run/bystander /root/bystander.pl /usr/local/sbin/vendor-reset /run/vendor-reset*
systemctl disable --now devmgrd-openers.socket; systemctl restart devmgrd`)
		h.ready()
	})
	h.ready()
	h.service("gpu0=/dev/vendor/gpu0:rw")
	if out := h.types("devmgrd check"); !strings.Contains(out, "the search for processes that use devices takes") || !strings.Contains(out, "release.command: /usr/local/sbin/vendor-reset") {
		t.Errorf("devmgrd check:\n%s", out)
	}
	h.types("systemd-run --unit=bystander perl /root/bystander.pl")
	h.until("the bystander has its files open", func() bool { return h.tries("ls /run/bystander") != "" })
	h.runs("first", 1)
	h.types("systemd-run --unit=holder bash -c 'exec 3<>/dev/vendor/gpu0; exec sleep 3600'")
	holder := h.types("systemctl show --value --property=MainPID holder")
	h.until("the holder has the device open", func() bool { return strings.HasPrefix(h.tries("readlink /proc/"+holder+"/fd/3"), "/dev/") })
	h.must(h.Delete(h.ctx, "first"))
	h.creates("second", 1, "/dev/gpu0")
	h.until("the device is busy", func() bool {
		out := h.tries("devmgrd devices")
		return strings.Contains(out, "busy") && strings.Contains(out, "process "+holder+" (") && strings.Contains(out, " open")
	})
	if out := h.tries("cat /run/vendor-reset"); strings.Contains(out, "gpu0") {
		t.Errorf("the command has run while the device was open: %s", out)
	}
	h.types("systemctl stop holder")
	h.running("second")
	if out := h.types("cat /run/vendor-reset"); !strings.HasPrefix(out, "--soft vendor.example/gpu gpu0 /dev/") || !strings.HasSuffix(out, " default/first") {
		t.Errorf("the command has run as %q", out)
	}
	h.until("systemd has no unit of the command", func() bool { return h.types("systemctl list-units --all --no-legend 'devmgrd-release-*'") == "" })

	// An upgrade of systemd's package has systemd execute itself again while the command runs.
	h.types("echo 10 > /run/vendor-reset-sleep")
	h.must(h.Delete(h.ctx, "second"))
	h.creates("third", 1, "/dev/gpu0")
	h.until("the command runs", func() bool { return strings.Contains(h.tries("cat /run/vendor-reset"), " default/second") })
	h.types("systemctl daemon-reexec; echo 0 > /run/vendor-reset-sleep")
	h.running("third")
	if n := strings.Count(h.types("cat /run/vendor-reset"), " default/second"); n != 1 {
		t.Errorf("the command was run %d times, want once", n)
	}

	// The command fails: the operator decides.
	h.types("echo 3 > /run/vendor-reset-exit")
	h.must(h.Delete(h.ctx, "third"))
	h.creates("fourth", 1, "/dev/gpu0")
	h.until("the command has failed", func() bool { return strings.Contains(h.tries("devmgrd devices"), "has failed with exit code 3") })
	h.types("systemctl restart devmgrd")
	h.ready()
	h.until("it is not repeated", func() bool { return strings.Contains(h.tries("devmgrd devices"), "has failed with exit code 3") })
	if n := strings.Count(h.types("cat /run/vendor-reset"), "default/third"); n != 1 {
		t.Errorf("the command was run %d times, want once", n)
	}
	h.types("devmgrd uncordon vendor.example/gpu/gpu0")
	h.running("fourth")
	h.types("echo 0 > /run/vendor-reset-exit")
}

// systemd runs the operator's command. A device that it finds unhealthy is out of service until it finds the device healthy.
func TestRelease_HealthCommand_DeviceIsSuspendedUntilItAgrees(t *testing.T) {
	h := start(t)
	h.driver()
	h.types("cp /etc/devmgrd/config.yaml /root/")
	h.must(h.machine.Put(h.ctx, map[string]string{
		"/etc/devmgrd/config.yaml": "health:\n  command: {vendor.example/gpu: /usr/local/sbin/vendor-examine}\n  interval: 10s\n",
		"/usr/local/sbin/vendor-examine": `#!/bin/bash
[ "$DEVMGRD_DEVICE" != "$(cat /run/vendor-bad)" ]
`}))
	h.types("chmod 755 /usr/local/sbin/vendor-examine; echo none > /run/vendor-bad; systemctl restart devmgrd")
	h.cleanup(func() {
		h.types(`cp /root/config.yaml /etc/devmgrd/ # over the other file, which has the label for SELinux
rm -f /root/config.yaml /usr/local/sbin/vendor-examine /run/vendor-bad; systemctl restart devmgrd`)
		h.ready()
	})
	h.ready()
	h.service("gpu0=/dev/vendor/gpu0:rw")
	if out := h.types("devmgrd check"); !strings.Contains(out, "health.command: /usr/local/sbin/vendor-examine") {
		t.Errorf("devmgrd check:\n%s", out)
	}
	h.types("echo gpu0 > /run/vendor-bad")
	h.until("the device is suspended", func() bool {
		out := h.tries("devmgrd devices")
		return strings.Contains(out, "suspended") && strings.Contains(out, "health.command finds it unhealthy (exit code 1)")
	})
	h.types("echo none > /run/vendor-bad")
	h.runs("later", 1)
	h.until("the history has both actions", func() bool {
		out := h.tries("devmgrd history --actions")
		return strings.Contains(out, "suspend") && strings.Contains(out, "resume")
	})
	if out := h.tries("systemctl list-units --all --no-legend 'devmgrd-health-*'"); strings.Contains(out, "failed") {
		t.Errorf("systemd still has %s", out)
	}
}
