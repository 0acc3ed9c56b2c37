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

// endContainers ends the node's containers without the runtime, and removes their cgroups.
func (c *Cluster) endContainers(ctx context.Context) error {
	emptyCgroup(c.run.cgroup())
	killProgram(c.Containers.Shim())
	var last error
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		emptyCgroup(c.run.cgroup())
		last = removeCgroups(c.run.cgroup(), false)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// cleanNode removes what the node's stopped processes have left. What other programs keep there, devmgrd for instance, stays.
func (c *Cluster) cleanNode() error {
	var errs []error
	for _, dir := range append(c.Containers.dirs(), "/run/netns", "/run/nri", "/var/lib/cni",
		"/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/etc/cni") {
		errs = append(errs, unmountBelow(dir), removeContent(dir))
	}
	return errors.Join(errs...)
}

// clean removes what all stopped processes have left.
func (c *Cluster) clean() error {
	err := errors.Join(c.cleanNode(), removeContent("/var/lib/etcd"))
	if removing := os.Remove(c.run.Kubeconfig()); removing != nil && !errors.Is(removing, os.ErrNotExist) {
		err = errors.Join(err, removing)
	}
	return err
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
