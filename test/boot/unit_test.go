//go:build e2e

package boot

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// A node gets devmgrd from its package. Each check passes, and what the unit promises is in force.
func TestPackage_OnAMachine_IsReadyAndConfined(t *testing.T) {
	h := start(t)
	if out := h.types("devmgrd check"); !strings.Contains(out, " 0 warn, 0 FAIL") {
		t.Errorf("devmgrd check has something to say:\n%s", out)
	}
	h.types("systemctl is-active devmgrd.service devmgrd.socket; systemctl is-enabled devmgrd.service devmgrd.socket")
	pid := h.types("systemctl show --value --property=MainPID devmgrd")
	for file, wants := range map[string][]string{
		"status":        {"CapEff:\t0000000000000004\n", "CapBnd:\t0000000000000004\n", "NoNewPrivs:\t1\n", "Seccomp:\t2\n"},
		"oom_score_adj": {"-999"},
		"attr/current":  {label()},
		"cgroup":        {"0::/system.slice/devmgrd.service"},
	} {
		got := h.types("cat /proc/" + pid + "/" + file)
		for _, want := range wants {
			if !strings.Contains(got+"\n", want) {
				t.Errorf("/proc/PID/%s has no %q:\n%s", file, want, got)
			}
		}
	}
	for file, want := range map[string]string{"memory.max": "1073741824", "memory.high": "943718400", "memory.swap.max": "0", "pids.max": "1024"} {
		if got := h.types("cat /sys/fs/cgroup/system.slice/devmgrd.service/" + file); got != want {
			t.Errorf("%s of its cgroup is %s, want %s", file, got, want)
		}
	}
	if out := h.tries("systemd-analyze --no-pager security devmgrd.service | tail -1"); !strings.Contains(out, "OK") {
		t.Errorf("systemd-analyze security: %s", out)
	} else {
		t.Log(strings.TrimSpace(out))
	}
}

// A purge takes the profile along, and the package can be installed again.
func TestPackage_Purged_LeavesNoProfile(t *testing.T) {
	if *onSELinux {
		t.Skip("the machine has no AppArmor; without -selinux it has")
	}
	h := start(t)
	h.types("systemctl stop devmgrd.socket devmgrd.service; dpkg --purge devmgrd")
	if out := h.types("find /etc/apparmor.d; cat /sys/kernel/security/apparmor/profiles"); strings.Contains(out, "devmgrd") {
		t.Errorf("the purge has left the profile:\n%s", out)
	}
	h.install()
}

// A container may open its device as its plugin has said, and no other: the filter of cgroup v2 is a program of runc's, to which NRI's
// changes must get.
func TestPermissions_EachMixOfRWM_IsEnforced(t *testing.T) {
	// Character devices that anyone may open in any way, and that no container has by default.
	chars := map[string]string{"r": "10 239", "w": "10 203", "m": "10 229", "rw": "10 235", "rm": "10 237", "wm": "10 238", "rwm": "10 241"}
	mixes := slices.Sorted(maps.Keys(chars))
	h := start(t)
	h.types("modprobe --all uhid cuse fuse autofs4 loop vhost_net vhost_vsock; mkdir /dev/vendor; truncate -s 1M /var/tmp/disk")
	h.cleanup(func() { h.tries("losetup --detach-all; rm -rf /dev/vendor /var/tmp/disk") })
	var devices []string
	for i, mix := range mixes {
		h.types(fmt.Sprintf("mknod /dev/vendor/char-%[1]s c %[2]s; losetup /dev/loop%[3]d /var/tmp/disk; mknod /dev/vendor/block-%[1]s b 7 %[3]d", mix, chars[mix], i))
		devices = append(devices, "char-"+mix+"=/dev/vendor/char-"+mix+":"+mix, "block-"+mix+"=/dev/vendor/block-"+mix+":"+mix)
	}
	h.service(devices...)
	var open []string
	for _, d := range devices {
		id, _, _ := strings.Cut(d, "=")
		open = append(open, "/dev/"+id)
	}
	got := h.runs("all", len(devices), open...)
	for _, path := range open {
		_, mix, _ := strings.Cut(path, "-")
		want := map[string]string{"r": "r", "w": "w", "": "", "rw": "r rw w"}[strings.ReplaceAll(mix, "m", "")]
		if now := opened(got, path); now != want {
			t.Errorf("%s can be opened for %q, want %q", path, now, want)
		}
	}
}

// systemd writes the device filters of its units again when it reloads: containers whose devices were added behind its back lose them
// then. runc tells systemd of devmgrd's.
func TestSystemd_ReloadsAndReexecutes_ContainersKeepTheirDevices(t *testing.T) {
	h := start(t)
	h.driver()
	h.service("gpu0=/dev/vendor/gpu0:rw", "gpu1=/dev/vendor/gpu1:r")
	h.runs("holder", 2)
	for _, does := range []string{"true", "systemctl daemon-reload", "systemctl daemon-reexec", "systemctl daemon-reload"} {
		h.types(does)
		if out, err := h.inside("holder", "open", "/dev/gpu0", "rw"); err != nil {
			t.Errorf("after %s its container cannot open its device: %v\n%s", does, err, out)
		}
		if out, err := h.inside("holder", "open", "/dev/gpu1", "rw"); err == nil || !strings.Contains(err.Error(), "operation not permitted") {
			t.Errorf("after %s its container can write to what it may read: %v\n%s", does, err, out)
		}
	}
	if n := h.restarts("holder"); n != 0 {
		t.Errorf("its container was started %d times again", n)
	}
}

// systemd starts devmgrd again when it has crashed, and when it hangs. Its sockets stay, pods that run keep their devices, and new ones
// wait for it.
func TestUnit_DevmgrdCrashesOrHangs_IsStartedAgain(t *testing.T) {
	h, had, other := startPair(t)
	for _, way := range []struct{ name, signal, result string }{
		{"crashes", "KILL", "devmgrd.service: Failed with result 'signal'"},
		{"hangs", "STOP", "devmgrd.service: Failed with result 'watchdog'"},
	} {
		from := h.types("date '+%s'")
		pid := h.types("systemctl show --value --property=MainPID devmgrd")
		h.types("kill -" + way.signal + " " + pid)
		h.creates(way.name, 1, "/dev/gpu0", "/dev/gpu1")
		h.until("systemd says why it starts devmgrd again", func() bool {
			return strings.Contains(h.tries("journalctl --no-pager --unit=devmgrd --since=@"+from), way.result)
		})
		h.ready()
		if now := h.types("systemctl show --value --property=MainPID devmgrd"); now == pid {
			t.Errorf("%s: devmgrd is process %s as before", way.name, now)
		}
		if got := h.running(way.name); got.Env["DEVICES"] != other || opened(got, "/dev/"+other) != "r rw w" {
			t.Errorf("%s: a new pod has %q, which it opens for %q; want %s, which is free", way.name, got.Env["DEVICES"], opened(got, "/dev/"+other), other)
		}
		h.must(h.Delete(h.soon(), way.name))
	}
	h.untouched(had)
}
