package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// PowerOff ends the node's half of the cluster as a power cut does: the kubelet, the runtime and all containers at once.
// What a machine loses with its memory is gone afterwards, mounts and what these programs keep in /run. What is on disk
// stays, and so does the control plane. What the caller has started on the node is the caller's to end.
func (c *Cluster) PowerOff(ctx context.Context) error {
	if err := errors.Join(c.Kubelet.Kill(), c.Runtime.Kill()); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	if err := c.endContainers(ctx); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	errs := []error{unmountBelow("/var/lib/kubelet")}
	for _, dir := range append(c.Containers.dirs(), "/run/netns", "/run/nri") {
		errs = append(errs, unmountBelow(dir))
		if strings.HasPrefix(dir, "/run/") {
			errs = append(errs, removeContent(dir))
		}
	}
	return errors.Join(append(errs, c.nextBoot())...)
}

// bootID is where the kernel shows the ID of the boot.
const bootID = "/proc/sys/kernel/random/boot_id"

// nextBoot has the kernel's ID of the boot be another one, in the cluster's own mount namespace.
func (c *Cluster) nextBoot() error {
	file := filepath.Join(c.run.Dir, "boot_id")
	if err := os.WriteFile(file, []byte(string(uuid.NewUUID())+"\n"), 0o644); err != nil {
		return err
	}
	if err := c.RealBoot(); err != nil {
		return err
	}
	if err := unix.Mount(file, bootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount on %s: %w", bootID, err)
	}
	return nil
}

// RealBoot has the kernel's ID of the boot be its own again, after a PowerOff. While a mount hides a part of /proc, the kernel mounts no
// /proc in a user namespace, so that no pod with one starts.
func (c *Cluster) RealBoot() error {
	if err := unix.Unmount(bootID, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", bootID, err)
	}
	return nil
}

// PowerOn starts the runtime and then the kubelet, and returns when the node is Ready again. before, if there is one, is
// called between the two.
func (c *Cluster) PowerOn(ctx context.Context, before func() error) error {
	if err := c.Runtime.Start(ctx); err != nil {
		return err
	}
	if err := c.WaitRuntime(ctx); err != nil {
		return err
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	if err := c.Kubelet.Start(ctx); err != nil {
		return err
	}
	return c.WaitNodeReady(ctx)
}
