package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A hierarchy is one mounted cgroup file system: each controller's with cgroup v1, the one with v2.
type hierarchy struct {
	mount string
	v2    bool
}

func hierarchies() ([]hierarchy, error) {
	content, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find the cgroup file systems: %w", err)
	}
	var found []hierarchy
	for line := range strings.Lines(string(content)) {
		left, right, _ := strings.Cut(line, " - ")
		mount, super := strings.Fields(left), strings.Fields(right)
		if len(mount) >= 5 && len(super) >= 1 && (super[0] == "cgroup" || super[0] == "cgroup2") {
			found = append(found, hierarchy{mount: mount[4], v2: super[0] == "cgroup2"})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("find the cgroup file systems: none is mounted below /sys/fs/cgroup")
	}
	return found, nil
}

// makeCgroup makes a cgroup in every hierarchy and sets what the kubelet expects in its root.
func makeCgroup(path string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.mount, path)
		if h.v2 {
			delegate(h.mount)
		}
		if err := h.make(dir); err != nil {
			return err
		}
		if h.v2 {
			delegate(dir)
		}
	}
	return nil
}

// make makes one cgroup that can hold processes.
func (h hierarchy) make(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make a cgroup for the run: %w", err)
	}
	if h.v2 {
		return nil
	}
	// With v1, a new cpuset is empty and can hold no process.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if value, err := os.ReadFile(filepath.Join(h.mount, file)); err == nil {
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return fmt.Errorf("make a cgroup for the run: %w", err)
			}
		}
	}
	return nil
}

// Enter puts the calling process, and with it whom it starts, into a cgroup of that name below the run's. It is for a
// machine inside the run: the first process of that takes the cgroup in which it finds itself for the root of all.
func (r Run) Enter(name string) error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		dir := filepath.Join(h.mount, r.cgroup(), name)
		if err := h.make(dir); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("enter the cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// Nest makes the run's cgroup where the caller sees the root of the cgroup file systems: in a machine inside the run that
// is somewhere below the run's own cgroup. A cluster can be started there then.
func (r Run) Nest() error { return makeCgroup(r.cgroup()) }

// delegate lets the children of a v2 cgroup have its controllers. One by one: a kernel may lack some, and the
// kubelet names those that it misses.
func delegate(dir string) {
	controllers, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range strings.Fields(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// cgroupDirs is where a cgroup is, or would be, in each hierarchy.
func cgroupDirs(path string) []string {
	all, _ := hierarchies()
	var dirs []string
	for _, h := range all {
		dirs = append(dirs, filepath.Join(h.mount, path))
	}
	return dirs
}

// emptyCgroup kills every process in a cgroup and in those below it, in all hierarchies. It does not wait for them
// to be gone.
func emptyCgroup(path string) {
	for _, root := range cgroupDirs(path) {
		_ = filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return nil
			}
			procs, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for _, word := range strings.Fields(string(procs)) {
				// 0 stands for a process of a namespace that is not ours.
				if pid, err := strconv.Atoi(word); err == nil && pid > 1 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
			return nil
		})
	}
}

// removeCgroups removes the cgroups below path in all hierarchies, and path itself if self is set. It fails with
// EBUSY while a process is in one of them.
func removeCgroups(path string, self bool) error {
	var errs []error
	for _, root := range cgroupDirs(path) {
		var dirs []string
		_ = filepath.WalkDir(root, func(dir string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() && (self || dir != root) {
				dirs = append(dirs, dir)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- { // children before parents
			if err := unix.Rmdir(dirs[i]); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("remove the cgroup %s: %w", dirs[i], err))
			}
		}
	}
	return errors.Join(errs...)
}
