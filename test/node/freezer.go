package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Freeze keeps a process from running until thaw is called. Even SIGKILL waits, as it does for a process in a driver's uninterruptible
// sleep. Only the freezer of cgroup version 1 does that. Freeze mounts it for the purpose, since a node may have version 2 alone.
func Freeze(pid int) (thaw func() error, err error) {
	mount, err := os.MkdirTemp("", "freezer-")
	if err != nil {
		return nil, err
	}
	if err := syscall.Mount("freezer", mount, "cgroup", 0, "freezer"); err != nil {
		return nil, errors.Join(fmt.Errorf("mount the freezer of cgroup version 1: %w", err), os.Remove(mount))
	}
	unmount := func() error {
		return errors.Join(syscall.Unmount(mount, syscall.MNT_DETACH), os.Remove(mount))
	}
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	_, path, _ := strings.Cut(string(cgroups), ":freezer:")
	path, _, _ = strings.Cut(path, "\n")
	former := filepath.Join(mount, path)
	frozen, err := os.MkdirTemp(former, "frozen-")
	if err != nil {
		return nil, errors.Join(err, unmount())
	}
	moveTo := func(cgroup string) error {
		return os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
	}
	// A process that leaves a frozen cgroup runs, and may end. Then the runtime removes its cgroups.
	thaw = sync.OnceValue(func() error {
		errs := []error{moveTo(former), os.Remove(frozen)}
		for i, err := range errs {
			if errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrNotExist) {
				errs[i] = nil
			}
		}
		return errors.Join(append(errs, unmount())...)
	})
	if err := errors.Join(os.WriteFile(filepath.Join(frozen, "freezer.state"), []byte("FROZEN"), 0), moveTo(frozen)); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze process %d: %w", pid, err), thaw())
	}
	return thaw, nil
}
