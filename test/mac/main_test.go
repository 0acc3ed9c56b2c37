//go:build e2e

package mac

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/test/apt"
	"github.com/devmgrd/devmgrd/test/debian"
)

const (
	insideVariable = "TESTMAC_INSIDE" // set: this process runs in the machine
	payload        = "/opt/mac"       // in the machine: what the test brings with it
	endMark        = "the test has ended with status "
	bootLimit      = 25 * time.Minute // an emulated machine on a busy one: with a load of 20 on two cores it has run for 6 minutes
)

// TestMain runs the tests in an emulated machine.
func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) != "" {
		os.Exit(m.Run())
	}
	status, err := inMachine()
	if err != nil {
		fmt.Fprintln(os.Stderr, "test/mac:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

// inMachine boots the machine and returns the status of this program in it.
func inMachine() (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Minute)
	defer cancel()
	err := apt.Ensure(ctx, os.Stderr, apt.Need{For: "a machine that enforces AppArmor is emulated with it",
		Missing: apt.Programs(map[string]string{"qemu-system-x86_64": "qemu-system-x86", "mke2fs": "e2fsprogs"})})
	if err != nil {
		return 0, err
	}
	kernel, err := debian.FindKernel(ctx)
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "devmgrd-mac-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	image, err := makeImage(ctx, dir)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "made the machine's file system in %s\n", time.Since(began).Round(time.Second/10))
	return boot(ctx, dir, kernel.Image, image)
}

// boot runs the machine until it powers off.
func boot(ctx context.Context, dir, kernel, image string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	console := filepath.Join(dir, "console")
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "1024",
		"-display", "none", "-monitor", "none", "-nodefaults", "-no-reboot",
		"-drive", "if=none,id=root,format=raw,cache=unsafe,file="+image, "-device", "nvme,drive=root,serial=root", // its driver is built into the kernel
		"-serial", "file:"+console, "-serial", "stdio",
		"-kernel", kernel, "-append", "root=/dev/nvme0n1 rw console=ttyS0 quiet panic=-1 edd=off systemd.getty_auto=no mitigations=off audit=1 audit_backlog_limit=8192 apparmor=1 security=apparmor")
	var printed bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(os.Stdout, &printed), os.Stderr
	began := time.Now()
	err := cmd.Run()
	fmt.Fprintf(os.Stderr, "the machine ran for %s\n", time.Since(began).Round(time.Second/10))
	_, rest, ended := strings.Cut(printed.String(), endMark)
	status := -1
	if ended {
		_, scanning := fmt.Sscan(rest, &status)
		err = errors.Join(err, scanning)
	}
	if err != nil || status != 0 {
		said, _ := os.ReadFile(console)
		fmt.Fprintf(os.Stderr, "--- the machine's console\n%s---\n", said)
	}
	if err == nil && !ended {
		err = errors.New("the machine powered off before the test ended")
	}
	return status, err
}
