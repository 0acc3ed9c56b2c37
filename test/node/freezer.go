package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Freeze keeps the processes of a pod, of which pid is one of a container, from running until thaw is called. Even SIGKILL waits, as it does
// for a process in a driver's uninterruptible sleep. It needs the freezer of cgroup version 1: that of version 2 lets SIGKILL through.
func Freeze(pid int) (thaw func() error, err error) {
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("freeze process %d: %w", pid, err)
	}
	_, path, found := strings.Cut(string(cgroups), ":freezer:")
	if !found {
		return nil, fmt.Errorf("freeze process %d: no freezer of cgroup version 1 in %q", pid, cgroups)
	}
	path, _, _ = strings.Cut(path, "\n")
	state := filepath.Join("/sys/fs/cgroup/freezer", filepath.Dir(path), "freezer.state")
	if err := os.WriteFile(state, []byte("FROZEN"), 0); err != nil {
		return nil, fmt.Errorf("freeze process %d: %w", pid, err)
	}
	return func() error {
		err := os.WriteFile(state, []byte("THAWED"), 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // thawed before, and ended
		}
		return err
	}, nil
}
