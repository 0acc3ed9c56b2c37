package nri

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
)

// CgroupRoot is where Linux distributions mount the cgroup file systems.
const CgroupRoot = "/sys/fs/cgroup"

// Cgroups finds the processes of pods and containers in the cgroup file systems below a directory. It looks only where root alone makes
// cgroups: at one whose parent, like all those above it, belongs to the owner of the file system, and is not writable for others. Users name
// cgroups as they like in those that systemd delegates to them, such as user@1000.service.
type Cgroups string

// ContainersWithProcesses returns the containers that may have processes: those with a cgroup that is not known to be empty. containerd and CRI-O
// name it after the container's ID with each cgroup driver: cri-containerd-<id>.scope, crio-<id>.scope or <id>. Containers of virtual
// machines may have no cgroup on the host: for them StartContainer is the only proof of a start.
func (c Cgroups) ContainersWithProcesses(ids []string) (map[string]bool, error) {
	occupied := map[string]bool{}
	err := c.walk(func(path string) error {
		for _, id := range ids {
			if strings.Contains(filepath.Base(path), id) && !empty(path) { // each cgroup may be that of a container without an ID
				occupied[id] = true
			}
		}
		if cgroups.PodAt(filepath.Dir(path)) != "" {
			return fs.SkipDir // below the cgroup of a container, its processes may make others
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for processes of containers: %w", err)
	}
	return occupied, nil
}

// namedProcesses is the number of a pod's processes that PodsWithProcesses names.
const namedProcesses = 4

// PodsWithProcesses returns the pods whose cgroup has a process, with a few of the processes if they are in devmgrd's PID namespace.
func (c Cgroups) PodsWithProcesses(pods []device.PodUID) (map[device.PodUID][]device.Process, error) {
	occupied := map[device.PodUID][]device.Process{}
	err := c.walk(func(path string) error {
		uid := cgroups.PodAt(path)
		if slices.Contains(pods, uid) && populated(path) {
			occupied[uid] = processes(path, occupied[uid])
		}
		if uid != "" {
			return fs.SkipDir // no pod is below another
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for processes of pods: %w", err)
	}
	return occupied, nil
}

// walk calls visit for each cgroup that root has made, parents first.
func (c Cgroups) walk(visit func(path string) error) error {
	if err := c.whole(); err != nil {
		return err
	}
	root, err := os.Stat(string(c))
	if err != nil {
		return err
	}
	return filepath.WalkDir(string(c), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case os.IsNotExist(err) && path != string(c):
			return nil // removed meanwhile
		case err != nil:
			return err
		case !entry.IsDir():
			return nil
		}
		if err := visit(path); err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil || owner(info) != owner(root) || info.Mode()&0o022 != 0 {
			return fs.SkipDir // removed meanwhile, or others make cgroups in it
		}
		return nil
	})
}

func owner(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// whole fails unless c shows all cgroups of the machine: a container, such as one of a DaemonSet, sees only its own. On cgroup v2
// only the root lacks cgroup.events, on v1 only a root has a release_agent.
func (c Cgroups) whole() error {
	if _, err := os.Stat(filepath.Join(string(c), "cgroup.controllers")); err == nil {
		if _, err := os.Stat(filepath.Join(string(c), "cgroup.events")); !os.IsNotExist(err) {
			return fmt.Errorf("%s does not show the host's cgroups", string(c))
		}
		return nil
	}
	if roots, err := filepath.Glob(filepath.Join(string(c), "*", "release_agent")); err != nil || len(roots) == 0 {
		return fmt.Errorf("%s does not show the host's cgroups", string(c))
	}
	return nil
}

// empty reports whether cgroup v2 says that a cgroup and those below it have no process.
func empty(path string) bool {
	events, err := os.ReadFile(filepath.Join(path, "cgroup.events"))
	return err == nil && bytes.Contains(append([]byte("\n"), events...), []byte("\npopulated 0\n"))
}

// populated reports whether a cgroup or one below it has a process.
func populated(path string) bool {
	if _, err := os.Stat(filepath.Join(path, "cgroup.events")); err == nil {
		return !empty(path)
	}
	found := false
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "cgroup.procs" {
			return nil // removed meanwhile
		}
		if procs, err := os.ReadFile(path); err == nil && len(procs) > 0 {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

// processes adds processes of a cgroup and of those below it to the known ones.
func processes(path string, known []device.Process) []device.Process {
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case len(known) == namedProcesses:
			return fs.SkipAll
		case err != nil || entry.Name() != "cgroup.procs":
			return nil // removed meanwhile
		}
		procs, err := os.ReadFile(path)
		if err != nil {
			return nil
		}
		for line := range strings.Lines(string(procs)) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || pid == 0 || len(known) == namedProcesses || slices.ContainsFunc(known, func(p device.Process) bool { return p.PID == pid }) {
				continue // 0: it is in another PID namespace
			}
			if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil {
				known = append(known, device.Process{PID: pid, Command: strings.TrimSuffix(string(name), "\n"), Holds: "has not ended"})
			}
		}
		return nil
	})
	return known
}
