package nspawn

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
)

// Where things are, in the namespaces and in the machine.
const (
	place      = "/run/machine" // a file system in memory for what the machine writes
	testInside = "/opt/machine.test"
)

// bootLimit is how long systemd may take to start its units. Several machines may boot at the same time, next to other work.
const bootLimit = 8 * time.Minute

// inMachine boots the machine and runs this program in it. It returns that program's status. The machine ends with the
// namespaces, like all that is in them.
func (o Options) inMachine() (int, error) {
	run, err := cluster.CurrentRun()
	if err != nil {
		return 0, err
	}
	root, err := layRoot()
	if err != nil {
		return 0, err
	}
	if err := run.Enter("machine"); err != nil {
		return 0, err
	}
	leader, console, err := o.boot(run, root)
	if err != nil {
		return 0, err
	}
	self := exec.Command("nsenter", append([]string{"--target", leader, "--all", "--wd=" + filepath.Join(os.Getenv(sourceVariable), o.Dir), "--", testInside}, testArgs()...)...)
	// The variables of a user who has just logged in, and what test/cluster and test/node look for.
	self.Env = []string{insideVariable + "=yes", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "HOME=" + os.Getenv("HOME")}
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "TESTCLUSTER_") || strings.HasPrefix(name, "TESTNODE_") || slices.Contains(slices.Concat([]string{sourceVariable}, o.Variables, o.ReadOnly, o.Writable), name) {
			self.Env = append(self.Env, variable)
		}
	}
	self.Stdout, self.Stderr = os.Stdout, os.Stderr
	err = self.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		fmt.Fprintf(os.Stderr, "--- the machine's console\n%s---\n", debian.Text(console))
		return exit.ExitCode(), nil
	}
	return 0, err
}

// testArgs are the arguments of this program without what names files that are not in the machine.
func testArgs() []string {
	var args []string
	for _, a := range os.Args[1:] {
		if !strings.HasPrefix(a, "-test.testlogfile") && !strings.HasPrefix(a, "-test.gocoverdir") {
			args = append(args, a)
		}
	}
	return args
}

// layRoot lays a layer in memory over the base system.
func layRoot() (string, error) {
	root, upper, work := filepath.Join(place, "root"), filepath.Join(place, "upper"), filepath.Join(place, "work")
	if err := os.MkdirAll(place, 0o755); err != nil {
		return "", err
	}
	if err := unix.Mount("machine", place, "tmpfs", 0, "mode=0755"); err != nil {
		return "", fmt.Errorf("mounting a tmpfs on %s: %w", place, err)
	}
	for _, dir := range []string{root, upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", os.Getenv(baseVariable), upper, work)
	if err := unix.Mount("machine", root, "overlay", 0, options); err != nil {
		return "", fmt.Errorf("laying a layer over the base system: %w", err)
	}
	// What an installer would have written. debootstrap has put the name of the machine that it ran on there.
	return root, errors.Join(
		os.WriteFile(filepath.Join(root, "etc/hostname"), []byte(cluster.NodeName+"\n"), 0o644),
		os.WriteFile(filepath.Join(root, "etc/hosts"), []byte("127.0.0.1 localhost "+cluster.NodeName+"\n"), 0o644),
	)
}

// boot starts systemd on the root and returns when it has come up, with its first process, and the file with what its
// console says.
func (o Options) boot(run cluster.Run, root string) (leader, console string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	cache, err := cluster.CacheDir()
	if err != nil {
		return "", "", err
	}
	args := []string{
		"--directory=" + root, "--boot", "--console=pipe", "--notify-ready=yes", "--machine=" + cluster.NodeName,
		// There is no machined, and no systemd around us.
		"--register=no", "--keep-unit", "--link-journal=no", "--resolv-conf=off", "--timezone=off",
		// A node's first process is as mighty as it can be; what it starts has to make containers in turn.
		"--capability=all", "--system-call-filter=@known",
		// Containers need a file system that is no overlay itself; and what a node writes goes to memory as well.
		"--tmpfs=/var/lib/containerd", "--tmpfs=/var/lib/kubelet", "--tmpfs=/var/lib/etcd", "--tmpfs=/var/log",
		"--bind-ro=" + self + ":" + testInside,
		"--bind-ro=" + os.Getenv(sourceVariable),
		"--bind-ro=" + filepath.Join(cache, "tools"),
		"--bind-ro=" + os.Getenv("TESTNODE_SAMPLE_MANIFEST"),
		"--bind=" + run.Dir,
		"--bind=/dev/kmsg", // for the kubelet
	}
	for _, variable := range o.ReadOnly {
		args = append(args, "--bind-ro="+os.Getenv(variable))
	}
	for _, variable := range o.Writable {
		args = append(args, "--bind="+os.Getenv(variable))
	}
	readiness := filepath.Join(place, "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: readiness, Net: "unixgram"})
	if err != nil {
		return "", "", err
	}
	defer socket.Close()

	log, err := os.Create(filepath.Join(place, "console"))
	if err != nil {
		return "", "", err
	}
	defer log.Close()
	cmd := exec.Command("systemd-nspawn", args...)
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+readiness, "SYSTEMD_NSPAWN_API_VFS_WRITABLE=1")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		cmd.Env = append(cmd.Env, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=0") // as it is outside
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", "", err
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		socket.Close()
	}()
	if err := socket.SetReadDeadline(time.Now().Add(bootLimit)); err != nil {
		return "", "", err
	}
	message := make([]byte, 4096)
	for {
		n, err := socket.Read(message)
		if err != nil {
			select {
			case err = <-ended:
			default:
				_ = cmd.Process.Kill()
				<-ended
			}
			return "", "", fmt.Errorf("booting the machine: %w\n%s", err, debian.Text(log.Name()))
		}
		ready := false
		for line := range strings.Lines(string(message[:n])) {
			line = strings.TrimSpace(line)
			if pid, ok := strings.CutPrefix(line, "X_NSPAWN_LEADER_PID="); ok {
				leader = pid
			}
			ready = ready || line == "READY=1"
		}
		if ready {
			return leader, log.Name(), nil
		}
	}
}
