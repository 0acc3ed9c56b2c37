//go:build e2e

package boot

import (
	"strings"
	"testing"
)

// The clock jumps by weeks, forth and back. A lost plugin has its grace period all the same, pods keep their devices, and new ones get
// theirs.
func TestClock_Jumps_NothingHappens(t *testing.T) {
	h, had, other := startPair(t)
	for i, jump := range []string{"+20 days", "-20 days"} {
		h.types("systemctl stop vendor-plugin.service")
		h.until("the plugin is lost", func() bool { return strings.Contains(h.tries("devmgrd plugins"), "stale") })
		h.types("date --set '" + jump + "'")
		if _, allocatable, err := h.Shown(h.ctx, gpu); err != nil || allocatable != 2 {
			t.Errorf("%s: the Node shows %d devices (%v), want 2 for the grace period", jump, allocatable, err)
		}
		h.types("systemctl start vendor-plugin.service")
		h.must(h.WaitShown(h.soon(), gpu, 2))
		name := []string{"first", "second"}[i]
		if got := h.runs(name, 1); got.Env["DEVICES"] != other {
			t.Errorf("%s: a new pod has %q, want %s", jump, got.Env["DEVICES"], other)
		}
		h.must(h.Delete(h.soon(), name))
	}
	h.untouched(had)
	if out := h.types("systemctl show --value --property=NRestarts devmgrd"); out != "0" {
		t.Logf("devmgrd was restarted %s times since its unit was started", out)
	}
}

// The disk is full. What runs goes on and a new pod waits, until there is space again.
func TestDisk_IsFull_NewPodsWait(t *testing.T) {
	h, had, other := startPair(t)
	h.cleanup(func() { h.tries("rm -f /var/full") })
	h.types(`fallocate --length $(($(stat --file-system --format="%a * %S" /var) - (64 << 20))) /var/full # of what is not root's alone
dd if=/dev/zero of=/var/full bs=1M oflag=append conv=notrunc 2>/dev/null || true
dd if=/dev/zero of=/var/full bs=4096 oflag=append conv=notrunc 2>/dev/null || true
sync; df /var; if head --bytes=64K /dev/zero > /var/more; then exit 1; fi; rm /var/more`)
	h.types("systemctl restart devmgrd") // it reads its state, and has nothing to write to
	h.ready()
	h.creates("meanwhile", 1, "/dev/gpu0", "/dev/gpu1")
	h.until("the runtime has no space for its container", func() bool { return strings.Contains(h.Events(h.ctx, "meanwhile"), "no space left on device") })
	h.types("rm -f /var/full; sync")
	if out, err := h.inside("before", "open", "/dev/"+had, "rw"); err != nil {
		t.Errorf("the pod that ran cannot open its device: %v\n%s", err, out)
	}
	if got := h.running("meanwhile"); got.Env["DEVICES"] != other || opened(got, "/dev/"+other) != "r rw w" {
		t.Errorf("the new pod has %q, which it opens for %q; want %s", got.Env["DEVICES"], opened(got, "/dev/"+other), other)
	}
	h.untouched(had)
}
