package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const hostDir = "/run/chaos"

// hostNode is a device on the host, by its hardware: see hardware. Each has a number of its own, as real ones have: devmgrd finds
// the processes that have a device open by its number.
func hostNode(hardware string) string { return filepath.Join(hostDir, "dev"+hardware) }

// makeDevices makes the hardware: block devices of the kernel, for which this machine has no use. They last until their files are closed,
// or the driver ends: release.ignore has its executable.
func makeDevices() (devices []*os.File, err error) {
	disk, err := os.OpenFile(filepath.Join(hostDir, "disk"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer disk.Close()
	if err := disk.Truncate(1 << 20); err != nil {
		return nil, err
	}
	for i := range deviceCount + 1 { // the last one is longDevice
		one, err := makeDevice(hostNode(fmt.Sprint(i)), disk)
		if err != nil {
			return devices, fmt.Errorf("making a device: %w", err)
		}
		devices = append(devices, one)
	}
	return devices, nil
}

// makeDevice makes a loop device and its node.
func makeDevice(node string, disk *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil {
			return nil, err
		}
		loop, err := os.OpenFile(node, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		c := unix.LoopConfig{Fd: uint32(disk.Fd()), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		if err = unix.IoctlLoopConfigure(int(loop.Fd()), &c); err == nil {
			return loop, nil
		}
		if err := errors.Join(loop.Close(), os.Remove(node)); err != nil {
			return nil, err
		}
		if !errors.Is(err, unix.EBUSY) { // else another program was faster
			return nil, err
		}
	}
}

const loopMajor = 7
