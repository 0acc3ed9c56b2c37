package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/debian"
)

// bootLimit is how long a machine may take until its units run. An emulated one takes 20 s on two idle cores.
const bootLimit = 8 * time.Minute

// Options are a machine's peculiarities. The zero value is a good machine.
type Options struct {
	// Dir is where the console's log and the disk are. By default they are in the run's directory, which is removed with the run.
	Dir string
	// Memory in MiB; 0: 2048.
	Memory int
	// KernelArgs are more words for the kernel's command line.
	KernelArgs []string
	// Log receives a line for each step. By default there are none.
	Log io.Writer
}

// A Machine is a virtual machine.
type Machine struct {
	options Options
	disk    disk
	accel   string
	qemu    *cluster.Process
	ssh     *cluster.Process // the connection that commands share; another one after each boot
	boot    string           // the ID of the latest boot that was waited for
}

// Start boots a machine and returns when systemd has started all of its units. It must be called inside the namespaces that [Main]
// makes, where one machine at a time can be.
func Start(ctx context.Context, o Options) (*Machine, error) {
	run, err := cluster.CurrentRun()
	if err != nil {
		return nil, err
	}
	d, err := sharedDisk()
	if err != nil {
		return nil, err
	}
	if o.Dir == "" {
		o.Dir = dirOf(run)
	}
	if o.Memory == 0 {
		o.Memory = 2048
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	m := &Machine{options: o, disk: d}
	if _, err := debian.Output(ctx, o.Dir, "qemu-img", "create", "-q", "-f", "qcow2", "-b", d.Image, "-F", "raw", m.overlay()); err != nil {
		return nil, err
	}
	if err := link(ctx); err != nil {
		return nil, err
	}
	m.accel = m.findAccelerator(ctx)
	if err := m.Boot(ctx); err != nil {
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

func dirOf(run cluster.Run) string { return filepath.Join(run.Dir, "machine") }

// SSH returns the words that run a command in the machine of a run, or a shell if there is none. They are for outside.
func SSH(run cluster.Run, command ...string) ([]string, error) {
	socket := controlSocket(dirOf(run))
	if _, err := os.Stat(socket); err != nil {
		return nil, fmt.Errorf("the node of run %s is no machine of its own: %w", run.ID, err)
	}
	return append([]string{"ssh", "-F", "none", "-S", socket, user}, command...), nil
}

// ConsoleOf is the file with what the console of a run's machine says.
func ConsoleOf(run cluster.Run) string { return filepath.Join(dirOf(run), "console") }

func controlSocket(dir string) string { return filepath.Join(dir, "ssh") }

func (m *Machine) overlay() string { return filepath.Join(m.options.Dir, "disk.qcow2") }

// Console is the file with what the machine's console says, of all boots since the power was switched on.
func (m *Machine) Console() string { return filepath.Join(m.options.Dir, "console") }

// Accelerator is how QEMU runs the machine: "kvm" or "tcg".
func (m *Machine) Accelerator() string { return m.accel }

const tap = "machine"

// link makes the link between the machine and its namespaces. The control plane's address is the loopback interface's; Linux answers
// for it on every link.
func link(ctx context.Context) error {
	for _, words := range [][]string{
		{"ip", "tuntap", "add", "dev", tap, "mode", "tap"},
		{"ip", "link", "set", tap, "up"},
		{"ip", "route", "replace", cluster.MachineAddress + "/32", "dev", tap, "src", cluster.ControlPlaneAddress},
	} {
		if _, err := debian.Output(ctx, "/", words...); err != nil && !strings.Contains(err.Error(), "Device or resource busy") {
			return err
		}
	}
	return nil
}

// qemuArgs are the words that run the machine. more are for the kernel's command line.
func (m *Machine) qemuArgs(accel, console string, more ...string) []string {
	cpu := "max"
	if accel == "kvm" {
		cpu = "host"
	}
	// Debian's daily timers take dpkg's lock for a moment, also where they have nothing to do: a test that runs dpkg then would fail.
	quiet := []string{"systemd.log_color=0", "systemd.mask=apt-daily.timer", "systemd.mask=apt-daily-upgrade.timer"}
	kernel := slices.Concat([]string{"root=/dev/nvme0n1", "rw", "console=ttyS0", "panic=-1", "edd=off", "mitigations=off"}, quiet, more, m.disk.Args, m.options.KernelArgs)
	return slices.Concat([]string{"qemu-system-x86_64", "-machine", "q35", "-accel", accel, "-cpu", cpu}, processors(m.options.Memory), []string{
		"-display", "none", "-monitor", "none", "-nodefaults", "-serial", "file:" + console,
		// NVMe's driver is built into the kernel: there is no initramfs. What the machine has flushed is safe from a power cut.
		"-drive", "if=none,id=root,format=qcow2,cache=writeback,file=" + m.overlay(), "-device", "nvme,drive=root,serial=root",
		"-netdev", "tap,id=net,ifname=" + tap + ",script=no,downscript=no", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-device", "virtio-rng-pci",
		"-kernel", m.disk.Kernel, "-append", strings.Join(kernel, " "),
	})
}

// processors are the words for two NUMA nodes, with a processor and half of the memory each.
func processors(memory int) []string {
	words := []string{"-smp", "2,sockets=2", "-m", fmt.Sprint(memory)}
	for node, size := range []int{memory / 2, memory - memory/2} {
		words = append(words, "-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=%dM", node, size),
			"-numa", fmt.Sprintf("node,nodeid=%[1]d,cpus=%[1]d,memdev=memory%[1]d", node))
	}
	return words
}

// How long a kernel that boots with KVM may print nothing, and take: an idle machine needs a moment. After that the whole run is emulated.
const (
	silence     = 2 * time.Minute
	longestBoot = 10 * time.Minute
)

// findAccelerator returns "kvm" if a kernel boots with it, and "tcg" otherwise: in virtual machines KVM may be offered, and a guest
// not get anywhere.
func (m *Machine) findAccelerator(ctx context.Context) string {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return "tcg"
	}
	console := filepath.Join(m.options.Dir, "kvm")
	args := append(m.qemuArgs("kvm", console), "-snapshot", "-no-reboot") // a kernel that panics ends QEMU
	probe := cluster.NewProcess("qemu-kvm", console+".log", args, nil)
	if err := probe.Start(ctx); err != nil {
		return "tcg"
	}
	defer probe.Kill()
	length, heard := 0, time.Now()
	ctx, cancel := context.WithTimeout(ctx, longestBoot)
	defer cancel()
	err := cluster.Poll(ctx, func(context.Context) (bool, error) {
		said, _ := os.ReadFile(console)
		if len(said) > length {
			length, heard = len(said), time.Now()
		}
		switch {
		case !probe.Running():
			return false, errors.New("QEMU has ended")
		case time.Since(heard) > silence:
			return false, fmt.Errorf("the kernel has printed nothing for %s", silence)
		}
		return bytes.Contains(said, []byte("systemd[1]: ")), nil
	})
	if err != nil {
		fmt.Fprintln(m.options.Log, "no kernel boots with KVM here, the machine is emulated:", err)
		return "tcg"
	}
	return "kvm"
}

// Boot boots a machine that is off, and returns when systemd has started all of its units.
func (m *Machine) Boot(ctx context.Context) error {
	if err := m.powerOn(ctx); err != nil {
		return err
	}
	return m.WaitBoot(ctx)
}

// powerOn starts QEMU.
func (m *Machine) powerOn(ctx context.Context) error {
	accel := m.accel
	if accel == "tcg" {
		accel = "tcg,thread=multi"
	}
	m.qemu = cluster.NewProcess("qemu", filepath.Join(m.options.Dir, "qemu.log"), m.qemuArgs(accel, m.Console(), "quiet"), nil)
	return m.qemu.Start(ctx)
}

// maxHangs is how often a boot may hang in an emulated kernel.
const maxHangs = 2

// stuck matches what a kernel says of a processor that has made no progress for a minute or more. On a busy host shorter times are common.
var stuck = regexp.MustCompile(`soft lockup - CPU#\d+ stuck for ([6-9]\d|\d{3,})s!`)

// hangs reports whether the kernel of an emulated machine hangs: with two emulated processors QEMU's translation loses a wake-up at times,
// mostly before systemd has started anything.
func (m *Machine) hangs() bool {
	said, err := os.ReadFile(m.Console())
	return err == nil && m.accel == "tcg" && stuck.Match(said)
}

// WaitBoot returns when the machine has booted since the last boot that was waited for, and systemd has started all units.
func (m *Machine) WaitBoot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	began, hung := time.Now(), 0
	last := errors.New("nothing seen")
	err := cluster.Poll(ctx, func(ctx context.Context) (bool, error) {
		if hung < maxHangs && m.hangs() {
			hung++
			fmt.Fprintf(m.options.Log, "the emulated kernel hangs after %s; switching the machine off and on\n", time.Since(began).Round(time.Second))
			return false, errors.Join(m.PowerCut(), m.powerOn(ctx))
		}
		if !m.qemu.Running() {
			return false, fmt.Errorf("QEMU has ended\n%s", debian.Text(m.qemu.LogPath()))
		}
		var id string
		if last = m.connect(ctx); last != nil {
			return false, nil
		}
		if id, last = m.Run(ctx, "cat", "/proc/sys/kernel/random/boot_id"); last != nil || id == m.boot {
			return false, nil
		}
		m.boot = id
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the machine to boot: %w (last seen: %w)\n--- the console\n%s", err, last, debian.Text(m.Console()))
	}
	state, err := m.Run(ctx, "systemctl", "is-system-running", "--wait")
	if err != nil {
		failed, _ := m.Run(ctx, "systemctl", "--no-pager", "--failed")
		return fmt.Errorf("the machine has booted, and is %s: %w\n%s", strings.TrimSpace(state), err, failed)
	}
	fmt.Fprintf(m.options.Log, "the machine has booted after %s (%s)\n", time.Since(began).Round(100*time.Millisecond), m.accel)
	return nil
}

// BootID is the kernel's ID of the boot that was waited for last.
func (m *Machine) BootID() string { return strings.TrimSpace(m.boot) }

// Reboot boots the machine again, as an administrator does, and returns when it is up.
func (m *Machine) Reboot(ctx context.Context) error {
	if out, err := m.Run(ctx, "systemctl", "--no-block", "reboot"); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return m.WaitBoot(ctx)
}

// PowerCut ends the machine at once. What it has not flushed to its disk is lost. Boot boots it again.
func (m *Machine) PowerCut() error {
	return errors.Join(m.qemu.Kill(), m.disconnect())
}

// Stop ends the machine and removes its disk.
func (m *Machine) Stop() error {
	var err error
	if m.qemu != nil {
		err = m.PowerCut()
	}
	return errors.Join(err, os.Remove(m.overlay()))
}

func (m *Machine) sshArgs(words ...string) []string {
	return append([]string{
		"ssh", "-F", "none", "-i", m.disk.Key, "-S", controlSocket(m.options.Dir),
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes",
		"-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=6",
	}, words...)
}

const user = "root@" + cluster.MachineAddress

// connect opens the connection that commands share.
func (m *Machine) connect(ctx context.Context) error {
	if m.ssh != nil && m.ssh.Running() {
		return m.check(ctx)
	}
	if err := m.disconnect(); err != nil {
		return err
	}
	m.ssh = cluster.NewProcess("ssh", filepath.Join(m.options.Dir, "ssh.log"), m.sshArgs("-M", "-N", user), nil)
	if err := m.ssh.Start(ctx); err != nil {
		return err
	}
	return m.check(ctx)
}

// check returns an error until the shared connection is there.
func (m *Machine) check(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "ssh", m.sshArgs("-O", "check", user)[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ssh: %w\n%s", err, out)
	}
	return nil
}

func (m *Machine) disconnect() error {
	if m.ssh == nil {
		return nil
	}
	err := m.ssh.Kill()
	m.ssh = nil
	if removing := os.Remove(controlSocket(m.options.Dir)); !errors.Is(removing, os.ErrNotExist) {
		err = errors.Join(err, removing)
	}
	return err
}

// Run runs a program in the machine, as root, and returns what it prints on its standard output. An error has what it prints on the
// other.
func (m *Machine) Run(ctx context.Context, words ...string) (string, error) {
	return m.Pipe(ctx, nil, words...)
}

// Pipe is Run for a program that reads its standard input.
func (m *Machine) Pipe(ctx context.Context, stdin io.Reader, words ...string) (string, error) {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	cmd := exec.CommandContext(ctx, "ssh", m.sshArgs(user, "--", strings.Join(quoted, " "))[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("in the machine: %s: %w\n%s", strings.Join(words, " "), err, errs.String())
	}
	return out.String(), nil
}

// Shell runs a script in the machine, as Run does.
func (m *Machine) Shell(ctx context.Context, script string) (string, error) {
	return m.Pipe(ctx, strings.NewReader(script), "bash", "-eu", "-o", "pipefail")
}
