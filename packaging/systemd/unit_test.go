package systemd

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/config"

	"github.com/devmgrd/devmgrd/test/apt"
)

const (
	unit   = "devmgrd.service"
	socket = "devmgrd.socket"
)

// settings gives the values of a key of the unit, without prefixes such as "-".
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

// TestVerify has systemd itself read the unit.
func TestVerify(t *testing.T) {
	tool := apt.Program(t, "systemd-analyze", "systemd", "the units are verified with systemd-analyze")
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	// The binary is not installed where tests run.
	stand := strings.Replace(string(text), "ExecStart=/usr/bin/devmgrd run", "ExecStart=/bin/true run", 1)
	if stand == string(text) {
		t.Fatal("the unit does not start /usr/bin/devmgrd run")
	}
	dir := t.TempDir()
	copied, listens := filepath.Join(dir, unit), filepath.Join(dir, socket)
	text, err = os.ReadFile(socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(copied, []byte(stand), 0o644), os.WriteFile(listens, text, 0o644)); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tool, "verify", "--man=no", copied, listens).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
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
	for _, dir := range []string{c.StateDir, c.RunDir, c.Plugins.SocketDir, c.Plugins.KubeletDir} {
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
		"WatchdogSec":              "30s", // a devmgrd that hangs is started anew
	} {
		if got := settings(t, key); len(got) != 1 || got[0] != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	for _, key := range []string{"Requires", "BindsTo", "PrivateDevices", "DevicePolicy", "ProtectClock", "PrivateTmp", "ProtectHome", "ProtectKernelLogs", "ProtectKernelModules", "PrivateUsers", "PrivateNetwork"} {
		if got := settings(t, key); len(got) > 0 {
			t.Errorf("%s=%q has no place in the unit; its comments say why", key, got)
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
