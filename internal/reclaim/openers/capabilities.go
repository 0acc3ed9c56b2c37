package openers

import (
	"strings"

	"golang.org/x/sys/unix"
)

// needed are the capabilities of a scan. Each has another one that includes it.
var needed = []struct {
	name           string
	bit, including int
}{
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, unix.CAP_SYS_PTRACE},
	{"CAP_DAC_READ_SEARCH", unix.CAP_DAC_READ_SEARCH, unix.CAP_DAC_OVERRIDE},
	{"CAP_CHECKPOINT_RESTORE", unix.CAP_CHECKPOINT_RESTORE, unix.CAP_SYS_ADMIN},
}

// lacking returns the end of an error's text: which needed capabilities this process lacks. Empty: none.
func lacking() string {
	var sets [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &sets[0]); err != nil {
		return ""
	}
	has := func(bit int) bool { return sets[bit/32].Effective&(1<<(bit%32)) != 0 }
	var names []string
	for _, c := range needed {
		if !has(c.bit) && !has(c.including) {
			names = append(names, c.name)
		}
	}
	if names == nil {
		return ""
	}
	return "; this process lacks " + strings.Join(names, ", ")
}
