package systemd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"

	"github.com/devmgrd/devmgrd/test/apt"
)

const (
	unit   = "devmgrd.service"
	socket = "devmgrd.socket"

	openersUnit, openersSocket = "devmgrd-openers.service", "devmgrd-openers.socket"
)

// settings returns the values of a key of the unit, without prefixes such as "-".
func settings(t *testing.T, key string) []string {
	t.Helper()
	return settingsOf(t, unit, key)
}

func settingsOf(t *testing.T, file, key string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), key+"="); ok {
			for v := range strings.FieldsSeq(value) {
				values = append(values, strings.TrimLeft(v, "-+"))
			}
		}
	}
	return values
}

// TestVerify has systemd itself read the units.
func TestVerify(t *testing.T) {
	tool := apt.Program(t, "systemd-analyze", "systemd", "the units are verified with systemd-analyze")
	for _, pair := range []struct{ service, socket, command string }{{unit, socket, "run"}, {openersUnit, openersSocket, "openers"}} {
		text, err := os.ReadFile(pair.service)
		if err != nil {
			t.Fatal(err)
		}
		// The binary is not installed where tests run.
		stand := strings.Replace(string(text), "ExecStart=/usr/bin/devmgrd "+pair.command, "ExecStart=/bin/true "+pair.command, 1)
		if stand == string(text) {
			t.Fatalf("%s does not start /usr/bin/devmgrd %s", pair.service, pair.command)
		}
		dir := t.TempDir()
		copied, listens := filepath.Join(dir, pair.service), filepath.Join(dir, pair.socket)
		text, err = os.ReadFile(pair.socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(copied, []byte(stand), 0o644), os.WriteFile(listens, text, 0o644)); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(tool, "verify", "--man=no", copied, listens).CombinedOutput()
		if err != nil || len(out) > 0 {
			t.Errorf("systemd-analyze verify %s: %v\n%s", pair.service, err, out)
		}
	}
}

// The process that sees into all others has only the rights for that, and answers only root.
func TestOpeners(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		file, key string
		values    []string
	}{
		{openersSocket, "ListenStream", []string{c.Release.Socket}},
		{openersSocket, "SocketMode", []string{"0600"}},
		{openersUnit, "CapabilityBoundingSet", []string{"CAP_SYS_PTRACE", "CAP_CHECKPOINT_RESTORE", "CAP_DAC_READ_SEARCH"}},
		{openersUnit, "PrivateNetwork", []string{"yes"}},
		{openersUnit, "ProtectSystem", []string{"strict"}},
		{openersUnit, "PrivateUsers", nil},
	} {
		if got := settingsOf(t, want.file, want.key); !slices.Equal(got, want.values) {
			t.Errorf("%s of %s is %q, want %q", want.key, want.file, got, want.values)
		}
	}
}

// TestDefaultDirectoriesAreWritable compares the unit with the configuration's defaults.
func TestDefaultDirectoriesAreWritable(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	// systemd listens where devmgrd would.
	if got, want := settingsOf(t, socket, "ListenStream"), filepath.Join(c.Plugins.SocketDir, "kubelet.sock"); len(got) != 1 || got[0] != want {
		t.Errorf("%s listens on %q, want %q", socket, got, want)
	}
	// ProtectSystem=full leaves all writable but the system's own directories.
	if got := settings(t, "ProtectSystem"); len(got) != 1 || got[0] != "full" {
		t.Fatalf("ProtectSystem is %q, want full: a device plugin may grant a mount whose source has to be made, anywhere", got)
	}
	kubelet := filepath.Dir(c.Plugins.KubeletDir)
	for _, dir := range []string{c.StateDir, c.RunDir, c.Plugins.SocketDir, c.Plugins.KubeletDir, c.Plugins.KubeletRegistryDir(), filepath.Join(kubelet, "plugins")} {
		for _, system := range []string{"/usr", "/boot", "/efi", "/etc"} {
			if dir == system || strings.HasPrefix(dir, system+"/") {
				t.Errorf("the daemon writes to %s, which the unit makes read-only", dir)
			}
		}
	}
}

// TestPromises holds what others rely on and a newcomer might change.
func TestPromises(t *testing.T) {
	for key, want := range map[string]string{
		"Type": "notify", "Restart": "always", "StartLimitIntervalSec": "0", // it is never given up
		"RuntimeDirectoryPreserve": "yes", // plugin containers have a directory below it mounted
		"Before":                   "kubelet.service",
		"AppArmorProfile":          "devmgrd", // packaging/apparmor
		"WatchdogSec":              "30s",     // a devmgrd that hangs is started again
	} {
		if got := settings(t, key); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"Requires", "BindsTo", "PrivateDevices", "PrivateTmp", "ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "PrivateUsers", "PrivateNetwork"} {
		if got := settings(t, key); len(got) > 0 {
			t.Errorf("%s=%q has no place in the unit; its comments say why", key, got)
		}
	}
}

// systemd makes the directory before devmgrd does.
func TestSocket_Directory_OtherUsersHaveNoAccess(t *testing.T) {
	if got := settingsOf(t, socket, "DirectoryMode"); !slices.Equal(got, []string{"0750"}) {
		t.Errorf("%s makes its directory with mode %q", socket, got)
	}
	if got := settings(t, "RuntimeDirectoryMode"); !slices.Equal(got, []string{"0755"}) { // other users pass through to the sockets that are for them
		t.Errorf("devmgrd.service has the directory above with mode %q", got)
	}
}

// TestExposure holds how much of the system systemd counts as exposed to devmgrd, from 0 to 10, and that each entry of its list has
// its reason in the unit.
func TestExposure(t *testing.T) {
	const most = 3.0
	tool := apt.Program(t, "systemd-analyze", "systemd", "the unit's exposure is counted by systemd-analyze")
	out, err := exec.Command(tool, "security", "--offline=true", "--no-pager", unit).Output()
	if err != nil {
		t.Fatalf("systemd-analyze security: %v", err)
	}
	_, text, found := strings.Cut(string(out), "Overall exposure level for "+unit+": ")
	figure, _, _ := strings.Cut(text, " ")
	if score, err := strconv.ParseFloat(figure, 64); !found || err != nil || score > most {
		t.Errorf("the exposure is %q, %v, want %v at most\n%s", figure, err, most, out)
	}
	shipped, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	var comments strings.Builder
	for line := range strings.Lines(string(shipped)) {
		if strings.HasPrefix(line, "#") {
			comments.WriteString(line)
		}
	}
	exposed := 0
	for line := range strings.Lines(string(out)) {
		name, ok := strings.CutPrefix(line, "✗ ")
		if !ok {
			continue
		}
		exposed++
		name = strings.Fields(name)[0]
		reasons := regexp.MustCompile(`AF_[A-Z]+|^[A-Za-z]+=`).FindAllString(name, 1)
		if families, ok := strings.CutPrefix(name, "RestrictAddressFamilies=~AF_"); ok { // of one, or of (several|ones)
			reasons = nil
			for family := range strings.SplitSeq(strings.Trim(families, "()"), "|") {
				reasons = append(reasons, "AF_"+family)
			}
		}
		if strings.HasPrefix(name, "CapabilityBoundingSet") {
			reasons = []string{"CAP_DAC"}
		}
		if len(reasons) == 0 {
			t.Errorf("%s: the entry is not understood", name)
		}
		for _, reason := range reasons {
			if !strings.Contains(comments.String(), reason) {
				t.Errorf("%s: no comment in the unit has the reason for %s", name, reason)
			}
		}
	}
	if exposed == 0 {
		t.Errorf("the list is not understood:\n%s", out)
	}
}

// TestBudget compares the memory limits: the collector comes first, then the kernel's brake, then the end.
func TestBudget(t *testing.T) {
	var bytes []int64
	for _, setting := range []string{strings.TrimPrefix(strings.Join(settings(t, "Environment"), ""), "GOMEMLIMIT="), strings.Join(settings(t, "MemoryHigh"), ""), strings.Join(settings(t, "MemoryMax"), "")} {
		n, err := strconv.ParseInt(strings.TrimRight(setting, "MGiB"), 10, 64)
		if err != nil {
			t.Fatalf("%q: %v", setting, err)
		}
		if strings.Contains(setting, "G") {
			n <<= 10
		}
		bytes = append(bytes, n)
	}
	if !slices.IsSorted(bytes) || bytes[0] == bytes[1] || bytes[1] == bytes[2] {
		t.Errorf("GOMEMLIMIT, MemoryHigh and MemoryMax are %v MiB, want each larger than the one before", bytes)
	}
	for _, key := range []string{"TasksMax", "LimitNOFILE", "UMask"} {
		if len(settings(t, key)) != 1 {
			t.Errorf("%s is not set", key)
		}
	}
}

// TestHostPlugin compares the drop-in for plugins on the host with the configuration's defaults.
func TestHostPlugin(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	const dropIn = "host-plugin.conf"
	want := c.Plugins.SocketDir + ":" + c.Plugins.KubeletDir
	if got := settingsOf(t, dropIn, "BindPaths"); len(got) != 1 || got[0] != want {
		t.Errorf("%s binds %q, want %q", dropIn, got, want)
	}
	want = c.Plugins.RegistryDir + ":" + filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins_registry")
	if got := settingsOf(t, dropIn, "#BindPaths"); len(got) != 1 || got[0] != want {
		t.Errorf("%s could bind %q, want %q", dropIn, got, want)
	}
	// Not Requires: to stop devmgrd is not to stop its plugins.
	if got := settingsOf(t, dropIn, "Wants"); len(got) != 1 || got[0] != socket {
		t.Errorf("%s wants %q, want %s", dropIn, got, socket)
	}
}

// The unit starts after either runtime, and starts none: on a node of CRI-O containerd may be installed and switched off.
func TestRuntimes_AreOrderedBefore_AndNotStarted(t *testing.T) {
	after, wants := strings.Join(settings(t, "After"), " "), strings.Join(append(settings(t, "Wants"), settings(t, "Requires")...), " ")
	for _, runtime := range []string{"containerd.service", "crio.service"} {
		if !strings.Contains(after, runtime) || strings.Contains(wants, runtime) {
			t.Errorf("%s: After=%s, Wants and Requires=%s", runtime, after, wants)
		}
	}
}
