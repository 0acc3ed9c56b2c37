package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// clean removes what stopped processes have left inside. What other programs keep there, devmgrd for instance,
// stays.
func (c *Cluster) clean() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(context.Context) (bool, error) {
		emptyCgroup(c.run.cgroup())
		last = removeCgroups(c.run.cgroup(), false)
		return last == nil, nil
	})
	if err != nil {
		return last
	}

	var errs []error
	for _, dir := range append(c.Containers.dirs(), "/run/netns", "/run/nri", "/var/lib/cni",
		"/var/lib/kubelet", "/var/lib/etcd", "/var/log/pods", "/var/log/containers", "/etc/cni") {
		errs = append(errs, unmountBelow(dir), removeContent(dir))
	}
	if err := os.Remove(c.run.Kubeconfig()); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// removeContent empties a folder, which may be a mount point.
func removeContent(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}

// killProgram kills every process inside that runs a program.
func killProgram(path string) {
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && exe == path {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}
