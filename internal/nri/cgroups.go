package nri

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// CgroupRoot is where Linux distributions mount the cgroup file systems.
const CgroupRoot = "/sys/fs/cgroup"

// Cgroups finds containers' processes in the cgroup file systems below a directory. containerd and CRI-O name a
// container's cgroup after its ID with each cgroup driver: cri-containerd-<id>.scope, crio-<id>.scope or <id>.
//
// A runtime with virtual machines may run containers without a cgroup of their own on the host. Their starts are known
// from StartContainer alone.
type Cgroups string

// shortestUID is the length of the shortest UID that a kubelet or an API server makes: a hash of a static pod's manifest.
const shortestUID = 32

// HasProcesses reports whether a container may have processes: whether there is a cgroup of its name that is not known to
// be empty.
func (c Cgroups) HasProcesses(container string) (found bool, err error) {
	if container == "" {
		return false, fmt.Errorf("looking for processes of a container without an ID")
	}
	err = c.walk(func(name, path string) error {
		if strings.Contains(name, container) && !empty(path) {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("looking for processes of container %s: %w", container, err)
	}
	return found, nil
}

// PodsWithProcesses returns those of the pods whose cgroup, as the kubelet names it, has a process: pod<uid>, or
// kubepods-<class>-pod<uid>.slice with underscores in the UID.
func (c Cgroups) PodsWithProcesses(pods []device.PodUID) (map[device.PodUID]bool, error) {
	asked, occupied := make(map[string]device.PodUID, len(pods)), map[device.PodUID]bool{}
	for _, uid := range pods {
		asked[strings.ReplaceAll(string(uid), "-", "_")] = uid
	}
	err := c.walk(func(name, path string) error {
		at := strings.LastIndex(name, "pod")
		if at < 0 {
			return nil
		}
		text := strings.TrimSuffix(name[at+len("pod"):], ".slice")
		uid, is := asked[strings.ReplaceAll(text, "-", "_")]
		if is && populated(path) {
			occupied[uid] = true
		}
		if is || len(text) >= shortestUID {
			return fs.SkipDir // no pod is below another
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("looking for processes of pods: %w", err)
	}
	return occupied, nil
}

// walk visits the cgroups below the root, each before those below it.
func (c Cgroups) walk(visit func(name, path string) error) error {
	if err := c.whole(); err != nil {
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
		return visit(entry.Name(), path)
	})
}

// whole fails unless these are all cgroups of the machine: a container, as of a DaemonSet, sees its own only. The root of
// version 2 alone has no cgroup.events, and a root of version 1 alone has a release_agent.
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

// empty reports whether a cgroup has no process, nor a cgroup below it. Version 1 does not say so.
func empty(path string) bool {
	events, err := os.ReadFile(filepath.Join(path, "cgroup.events"))
	return err == nil && bytes.Contains(append([]byte("\n"), events...), []byte("\npopulated 0\n"))
}

// populated reports whether a cgroup has a process, or a cgroup below it has.
func populated(path string) bool {
	if events, err := os.ReadFile(filepath.Join(path, "cgroup.events")); err == nil {
		return !bytes.Contains(append([]byte("\n"), events...), []byte("\npopulated 0\n"))
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
