//go:build e2e

package debian

import (
	"compress/gzip"
	"context"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/packaging/containerd"
	"github.com/devmgrd/devmgrd/test/node"
)

// TestPackage is a node's life with the package, from the installation to the purge. Each step builds on those before it.
func TestPackage(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 18*time.Minute)
	t.Cleanup(cancel)
	u := &user{t: t, ctx: ctx}
	t.Cleanup(func() {
		if t.Failed() {
			u.t = t
			u.describe()
		}
	})
	type step struct {
		name string
		do   func(*user)
	}
	steps := []step{
		{"install", (*user).install},
		{"files", (*user).files},
		{"quiet", (*user).nothingRuns},
		{"cluster", func(u *user) { u.startCluster(u.t) }},
		{"check", (*user).check},
		{"start", (*user).start},
		{"hardening", (*user).hardening},
		{"plugin", (*user).plugin},
		{"pods", (*user).pods},
		{"out-of-service", (*user).outOfService},
		{"host-plugin", (*user).hostPlugin},
		{"upgrade", (*user).upgrade},
		{"downgrade", (*user).downgrade},
		{"stopped", (*user).upgradeWhileStopped},
		{"remove", (*user).remove},
		{"purge", (*user).purge},
	}
	if os.Getenv(releaseVariable) != "" {
		steps = slices.Insert(steps, slices.IndexFunc(steps, func(s step) bool { return s.name == "check" }), step{"image", (*user).image})
		steps = slices.Insert(steps, 0, step{"release", (*user).release})
	}
	for _, step := range steps {
		began := time.Now()
		if !t.Run(step.name, func(t *testing.T) { u.t = t; step.do(u) }) {
			return // nothing after it would make sense
		}
		t.Logf("%s took %s", step.name, time.Since(began).Round(10*time.Millisecond))
	}
}

// The package is installed without a network and without anything else.
func (u *user) install() {
	out := u.installs(older)
	u.reads(out, "It is neither started nor enabled", "devmgrd check", "systemctl enable --now devmgrd.socket devmgrd.service")
	u.sees("devmgrd version", "v"+older, "commit:")
}

// What is in it is there, and as it should be.
func (u *user) files() {
	u.sees("dpkg --verify devmgrd") // prints nothing if all is as shipped
	u.sees("dpkg-query --show --showformat=${Conffiles} devmgrd", "/etc/apparmor.d/devmgrd", "/etc/devmgrd/config.yaml")
	for path, mode := range map[string]fs.FileMode{
		"/usr/bin/devmgrd":                                  0o755,
		"/usr/lib/systemd/system/devmgrd.service":           0o644,
		"/usr/lib/systemd/system/devmgrd.socket":            0o644,
		"/etc/devmgrd/config.yaml":                          0o644,
		"/etc/apparmor.d/devmgrd":                           0o644,
		"/usr/share/devmgrd/apparmor/devmgrd":               0o644,
		"/usr/share/devmgrd/selinux/devmgrd.te":             0o644,
		"/usr/share/devmgrd/containerd/devmgrd.toml":        0o644,
		"/usr/share/devmgrd/crio/devmgrd.conf":              0o644,
		"/usr/share/devmgrd/kubernetes/fail-closed.yaml":    0o644,
		"/usr/share/devmgrd/kubernetes/pod-size.yaml":       0o644,
		"/usr/share/devmgrd/kubernetes/rbac.yaml":           0o644,
		"/usr/share/devmgrd/kubernetes/daemonset.yaml":      0o644,
		"/usr/share/devmgrd/systemd/host-plugin.conf":       0o644,
		"/usr/share/devmgrd/systemd/other-users.conf":       0o644,
		"/usr/share/devmgrd/kubernetes/rbac-eviction.yaml":  0o644,
		"/usr/share/devmgrd/kubernetes/rbac-dra.yaml":       0o644,
		"/usr/share/devmgrd/kubernetes/daemonset-dra.yaml":  0o644,
		"/usr/share/doc/devmgrd/SECURITY.md":                0o644,
		"/usr/share/doc/devmgrd/sbom.cdx.json":              0o644,
		"/usr/share/devmgrd/prometheus/alerts.yaml":         0o644,
		"/usr/share/devmgrd/grafana/devmgrd.json":           0o644,
		"/usr/share/devmgrd/grafana/fleet.json":             0o644,
		"/usr/share/doc/devmgrd/copyright":                  0o644,
		"/usr/share/doc/devmgrd/changelog.gz":               0o644,
		"/usr/share/doc/devmgrd/docs/install.md":            0o644,
		"/usr/share/man/man5/devmgrd.yaml.5.gz":             0o644,
		"/usr/share/man/man8/devmgrd.8.gz":                  0o644,
		"/usr/share/man/man8/devmgrd-status.8.gz":           0o644,
		"/usr/share/bash-completion/completions/devmgrd":    0o644,
		"/usr/share/zsh/vendor-completions/_devmgrd":        0o644,
		"/usr/share/fish/vendor_completions.d/devmgrd.fish": 0o644,
	} {
		info, err := os.Stat(path)
		if err != nil {
			u.t.Error(err)
		} else if info.Mode() != mode {
			u.t.Errorf("%s has mode %v, want %v", path, info.Mode(), mode)
		}
	}

	binary, err := elf.Open("/usr/bin/devmgrd")
	u.must(err)
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			u.t.Error("the binary is not static")
		}
	}
	u.bill()
	page, err := os.Open("/usr/share/man/man8/devmgrd.8.gz")
	u.must(err)
	defer page.Close()
	unzipped, err := gzip.NewReader(page)
	u.must(err)
	if text, err := io.ReadAll(unzipped); err != nil || !strings.Contains(string(text), `"devmgrd v`+older+`"`) {
		u.t.Errorf("the manual page is %q, %v", text, err)
	}
	u.reads(u.types("bash", "-c", ". /usr/share/bash-completion/completions/devmgrd && complete -p devmgrd"), "devmgrd")
	u.reads(u.types("devmgrd", "__complete", "st"), "status\t", "store\t")
}

// bill compares the bill of materials with what the linker has recorded in the binary.
func (u *user) bill() {
	info, err := buildinfo.ReadFile("/usr/bin/devmgrd")
	u.must(err)
	text, err := os.ReadFile("/usr/share/doc/devmgrd/sbom.cdx.json")
	u.must(err)
	var bill struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version string }
	}
	u.must(json.Unmarshal(text, &bill))
	listed := map[string]string{}
	for _, c := range bill.Components {
		listed[c.Name] = c.Version
	}
	for _, m := range info.Deps {
		if listed[m.Path] != m.Version {
			u.t.Errorf("%s %s is linked into the binary, and the bill of materials has %q", m.Path, m.Version, listed[m.Path])
		}
	}
	if bill.BOMFormat != "CycloneDX" || bill.Metadata.Component.Version != "v"+older || len(listed) != len(info.Deps)+1 || listed["std"] == "" {
		u.t.Errorf("the bill of materials is %s of %s with %d components, want %d", bill.BOMFormat, bill.Metadata.Component.Version, len(listed), len(info.Deps)+1)
	}
}

// An installation starts nothing.
func (u *user) nothingRuns() {
	for _, unit := range []string{"devmgrd.service", "devmgrd.socket"} {
		if out, _ := u.tries("systemctl", "is-active", unit); out != "inactive\n" {
			u.t.Errorf("%s is %q", unit, out)
		}
		if out, _ := u.tries("systemctl", "is-enabled", unit); out != "disabled\n" {
			u.t.Errorf("%s is %q", unit, out)
		}
	}
	u.absent("/run/devmgrd", "/var/lib/devmgrd")
}

func (u *user) absent(paths ...string) {
	u.t.Helper()
	for _, path := range paths {
		if _, err := os.Lstat(path); err == nil {
			u.t.Errorf("%s is there", path)
		}
	}
}

// Before the start, devmgrd check finds no obstacle.
func (u *user) check() {
	text, err := os.ReadFile("/etc/containerd/conf.d/devmgrd.toml")
	u.must(err)
	shipped, err := os.ReadFile("/usr/share/devmgrd/containerd/devmgrd.toml")
	u.must(err)
	if string(text) != string(shipped) || string(shipped) != containerd.Config {
		u.t.Error("containerd has another configuration than the one that is shipped")
	}
	var out string
	if !u.comes(func() (sound bool) {
		var status int
		out, status = u.tries("devmgrd", "check")
		return status == 0
	}) {
		u.t.Errorf("devmgrd check:\n%s", out)
	}
	u.t.Logf("devmgrd check:\n%s", out)
	u.reads(out, "containerd")
}

// It is started as the installation has said.
func (u *user) start() {
	u.types("systemctl", "enable", "--now", "devmgrd.socket", "devmgrd.service") // returns after READY
	for unit, properties := range map[string]map[string]string{
		"devmgrd.service": {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "WatchdogUSec": "30s", "NRestarts": "0"},
		"devmgrd.socket":  {"ActiveState": "active", "SubState": "running", "UnitFileState": "enabled"},
	} {
		for name, want := range properties {
			if got := u.property(unit, name); got != want {
				u.t.Errorf("%s of %s is %q, want %q", name, unit, got, want)
			}
		}
	}
	if u.property("devmgrd.service", "WatchdogTimestamp") == "" {
		u.t.Error("the watchdog is not armed")
	}
	u.until("all parts are ready", func() bool {
		status, _, err := u.Get("/readyz")
		return err == nil && status == http.StatusOK
	})
}

// What the unit promises is in force for the process that runs.
func (u *user) hardening() {
	pid := u.property("devmgrd.service", "MainPID")
	text, err := os.ReadFile("/proc/" + pid + "/status")
	u.must(err)
	for _, want := range []string{
		"CapBnd:\t0000000000000004", "CapEff:\t0000000000000004", // CAP_DAC_READ_SEARCH
		"NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(text), want+"\n") {
			u.t.Errorf("/proc/%s/status lacks %q:\n%s", pid, want, text)
		}
	}
	mounts, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	u.must(err)
	for _, dir := range []string{"/usr", "/etc", "/boot", "/proc/sys", "/sys/fs/cgroup"} {
		readOnly := false
		for line := range strings.Lines(string(mounts)) {
			if f := strings.Fields(line); f[4] == dir {
				readOnly = slices.Contains(strings.Split(f[5], ","), "ro")
			}
		}
		if !readOnly {
			u.t.Errorf("%s is not read-only for devmgrd:\n%s", dir, mounts)
		}
	}
	score, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
	u.must(err)
	if out := u.types("systemd-analyze", "security", "--no-pager", "devmgrd.service"); !strings.Contains(out, "Overall exposure level") {
		u.t.Errorf("systemd-analyze security: %s", out)
	} else {
		_, text, _ := strings.Cut(out, "Overall exposure level for devmgrd.service: ")
		figure, _, _ := strings.Cut(text, " ")
		if exposure, err := strconv.ParseFloat(figure, 64); err != nil || exposure > 3.0 {
			u.t.Errorf("the exposure of the running service is %q, %v, want 3.0 at most:\n%s", figure, err, out)
		}
	}
	for name, want := range map[string]string{"MemoryHigh": "943718400", "MemoryMax": "1073741824", "TasksMax": "1024", "UMask": "0077"} {
		if got := u.property("devmgrd.service", name); got != want {
			u.t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	environment, err := os.ReadFile("/proc/" + pid + "/environ")
	u.must(err)
	u.reads(string(environment), "GOMEMLIMIT=")
	u.t.Logf("oom_score_adj is %s", score) // -999, where the machine around this may go so low
}

// A device plugin comes, as its makers ship it.
func (u *user) plugin() {
	u.must(u.ApplySampleCDI(u.ctx))
	u.shows(2)
	u.sees("devmgrd status", "devmgrd v"+older, "registration", "ok", "nri", "ok", node.SampleResource, "serving", "No pod waits.")
	u.sees("devmgrd plugins", node.SampleResource, "serving")
	status, page, err := u.Get("/")
	if err != nil || status != http.StatusOK || !strings.Contains(page, node.SampleResource) {
		u.t.Errorf("the page: status %d, %v\n%s", status, err, page)
	}
}

// A pod gets a device, and another one waits with a reason.
func (u *user) pods() {
	_, device := u.runs("first")
	if holder := u.holder(device); holder != "first" {
		u.t.Errorf("pod first has %s, and devmgrd says that %q has it", device, holder)
	}
	u.sees("devmgrd assignments default/first", "default/first", "main", node.SampleResource, device)

	const missing = "vendor.example/missing"
	waits := node.Pod("second", missing, 1, "report", "--then-sleep")
	waits.Spec.NodeName = u.NodeName() // the scheduler would not send it here
	u.must(u.Create(u.ctx, waits))
	u.until("the second pod waits", func() bool {
		out, status := u.tries("devmgrd", "explain", "default/second")
		return status == 0 && strings.Contains(out, "PluginMissing")
	})
	u.sees("devmgrd explain default/second", "State:", "waiting", "Reason:", "PluginMissing", "Why:", missing, "Ends:")
	u.sees("devmgrd status", "WAITING POD", "default/second")
	u.must(u.Delete(u.ctx, "second"))
}

// Devices are taken out of service and put back.
func (u *user) outOfService() {
	device := "Dev-1"
	if u.holder(device) != "first" {
		device = "Dev-2"
	}
	name := node.SampleResource + "/" + device
	u.sees("devmgrd cordon "+name+" --reason dust", device, "assigned", "dust")
	u.sees("devmgrd drain "+name+" --reason dust", "waiting for default/first:main")
	u.shows(1)
	u.sees("devmgrd devices", device, "cordoned", "dust")
	u.sees("devmgrd history --device "+name, "FROM", "default/first", "main", device)
	u.sees("devmgrd uncordon "+name, device, "free")
	u.shows(2)
}

// A plugin that is a service of the host comes by the drop-in.
func (u *user) hostPlugin() {
	set, err := u.SamplePlugin()
	u.must(err)
	u.must(u.Client().AppsV1().DaemonSets(set.Namespace).Delete(u.ctx, set.Name, deleteAtOnce()))
	u.until("the plugin's pod is gone", func() bool {
		out, _ := u.tries("devmgrd", "plugins")
		return strings.Contains(out, "stale")
	})
	unit := fmt.Sprintf("[Service]\nExecStart=%s\nEnvironment=PLUGIN_SOCK_DIR=/var/lib/kubelet/device-plugins CDI_ENABLED=1\n", u.Tools.Path("sample-device-plugin"))
	u.must(os.WriteFile("/etc/systemd/system/sample-plugin.service", []byte(unit), 0o644))
	u.types("install", "-D", "-m", "0644", "/usr/share/devmgrd/systemd/host-plugin.conf", "/etc/systemd/system/sample-plugin.service.d/devmgrd.conf")
	u.types("systemctl", "daemon-reload")
	u.types("systemctl", "start", "sample-plugin.service")
	u.until("the plugin serves", func() bool {
		out, _ := u.tries("devmgrd", "plugins")
		return strings.Contains(out, "serving")
	})
	sockets, err := filepath.Glob("/var/lib/kubelet/device-plugins/dp.*")
	if err != nil || len(sockets) > 0 {
		u.t.Errorf("the plugin has come to the kubelet's directory: %q, %v", sockets, err)
	}
	u.shows(2)
}

// An upgrade while a pod has a device interrupts nothing.
func (u *user) upgrade() {
	configuration := "log:\n  level: debug # mine\n"
	u.must(os.WriteFile("/etc/devmgrd/config.yaml", []byte(configuration), 0o644))
	u.must(u.FailClosed(u.ctx))
	u.runs("holder")
	u.replace(newer)
	if text, err := os.ReadFile("/etc/devmgrd/config.yaml"); err != nil || string(text) != configuration {
		u.t.Errorf("the configuration is %q, %v, want what the administrator has written", text, err)
	}
	u.sees("devmgrd config", "level: debug # /etc/devmgrd/config.yaml")
}

// The way back is the same, as long as both versions know the state file.
func (u *user) downgrade() { u.replace(older) }

// replace has another version installed over the one that runs, and looks whether anything was interrupted.
func (u *user) replace(version string) {
	u.t.Helper()
	before, err := u.WaitPhase(u.ctx, "holder", corev1.PodRunning)
	u.must(err)
	devices := u.types("devmgrd", "assignments", "default/holder")
	pid, socket := u.property("devmgrd.service", "MainPID"), u.property("devmgrd.socket", "ActiveEnterTimestampMonotonic")
	plugin := u.property("sample-plugin.service", "MainPID")
	stayed := u.watchShown(node.SampleResource, 2)
	settle := u.load()

	out := u.installs(version)
	if strings.Contains(out, "neither started nor enabled") {
		u.t.Errorf("it is said not to be started:\n%s", out)
	}
	u.sees("devmgrd version", "v"+version)
	u.sees("devmgrd status", "devmgrd v"+version)
	if now := u.property("devmgrd.service", "MainPID"); now == pid || now == "0" {
		u.t.Errorf("the service's process was %s and is %s", pid, now)
	}
	if now := u.property("devmgrd.socket", "ActiveEnterTimestampMonotonic"); now != socket {
		u.t.Error("the socket was closed and opened again")
	}
	if now := u.property("sample-plugin.service", "MainPID"); now != plugin || now == "0" {
		u.t.Errorf("the plugin's process was %s and is %s", plugin, now)
	}
	u.until("all is as it was", func() bool {
		status, _, err := u.Get("/readyz")
		out, _ := u.tries("devmgrd", "plugins")
		return err == nil && status == http.StatusOK && strings.Contains(out, "serving")
	})
	if now := u.types("devmgrd", "assignments", "default/holder"); now != devices {
		u.t.Errorf("the assignments were\n%s\nand are\n%s", devices, now)
	}
	after, err := u.WaitPhase(u.ctx, "holder", corev1.PodRunning)
	u.must(err)
	if was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; was.ContainerID != is.ContainerID || is.RestartCount != 0 {
		u.t.Errorf("the pod's container was %s and is %s, restarted %d times", was.ContainerID, is.ContainerID, is.RestartCount)
	}
	settle()
	if out := u.types("journalctl", "--no-pager", "--boot", "--unit=devmgrd.service"); strings.Contains(out, "systemd does not say") {
		u.t.Errorf("systemd has not answered for a while after a start, and pods with devices waited:\n%s", out)
	}
	u.runs("later") // the new one is at work
	u.must(u.Delete(u.ctx, "later"))
	stayed()
}

// A stopped devmgrd is not started by an upgrade.
func (u *user) upgradeWhileStopped() {
	u.types("systemctl", "stop", "devmgrd.socket", "devmgrd.service")
	u.installs(newer)
	for _, unit := range []string{"devmgrd.service", "devmgrd.socket"} {
		if out, _ := u.tries("systemctl", "is-active", unit); out != "inactive\n" {
			u.t.Errorf("%s is %q", unit, out)
		}
	}
	u.types("systemctl", "start", "devmgrd.socket", "devmgrd.service")
	u.until("all parts are ready", func() bool {
		status, _, err := u.Get("/readyz")
		return err == nil && status == http.StatusOK
	})
}

// The package is removed, and what is left is what the administrator may want again.
func (u *user) remove() {
	u.types("systemctl", "stop", "sample-plugin.service")
	before, err := u.WaitPhase(u.ctx, "holder", corev1.PodRunning)
	u.must(err)
	u.types("apt-get", "remove", "--yes", "--quiet", "devmgrd")
	if out, status := u.tries("systemctl", "cat", "devmgrd.service", "devmgrd.socket"); status == 0 {
		u.t.Errorf("there are units:\n%s", out)
	}
	if left := node.Processes("/usr/bin/devmgrd"); len(left) > 0 {
		u.t.Errorf("processes %d still run", left)
	}
	u.absent("/usr/bin/devmgrd", "/run/devmgrd", "/usr/share/devmgrd", "/usr/share/doc/devmgrd", "/var/lib/kubelet/device-plugins/devmgrd.txt")
	u.left("/etc/apparmor.d/devmgrd", "/etc/devmgrd/config.yaml", "/var/lib/devmgrd/state.db", "/var/lib/devmgrd/history.db")

	// Who runs, runs on, and the Node shows its last numbers.
	after, err := u.WaitPhase(u.ctx, "holder", corev1.PodRunning)
	u.must(err)
	if was, is := before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID; was != is {
		u.t.Errorf("the pod's container was %s and is %s", was, is)
	}
	u.shows(2)
}

func (u *user) purge() {
	u.types("dpkg", "--purge", "devmgrd")
	u.absent("/etc/devmgrd", "/var/lib/devmgrd", "/etc/apparmor.d/devmgrd")
	u.left()
	if out, status := u.tries("dpkg-query", "--show", "devmgrd"); status == 0 {
		u.t.Errorf("dpkg still knows it: %s", out)
	}
}

// left looks for files with devmgrd in their paths, and wants those among them.
func (u *user) left(want ...string) {
	u.t.Helper()
	var found []string
	for _, top := range []string{"/etc", "/usr", "/run", "/var", "/root"} {
		err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil: // it has just gone
				return nil
			case slices.Contains(notOurs, path), strings.HasPrefix(path, "/run/containerd/"), strings.HasPrefix(path, "/run/host/"):
				if entry.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if strings.Contains(path, "devmgrd") && !entry.IsDir() {
				found = append(found, path)
			}
			return nil
		})
		u.must(err)
	}
	for _, path := range want {
		if !slices.Contains(found, path) {
			u.t.Errorf("%s has gone", path)
		}
	}
	for _, path := range found {
		if !slices.Contains(want, path) && !slices.ContainsFunc(want, func(w string) bool { return filepath.Dir(w) == filepath.Dir(path) }) {
			u.t.Errorf("%s is left", path)
		}
	}
}

// notOurs have devmgrd in their names, and are the administrator's or this test's.
var notOurs = []string{
	"/etc/containerd/conf.d/devmgrd.toml", "/etc/cni/net.d/10-devmgrd.conflist", "/etc/systemd/system/sample-plugin.service.d",
	"/root/.cache", "/var/log", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/dpkg/info/devmgrd.list", "/var/lib/dpkg/info/devmgrd.postrm",
}
