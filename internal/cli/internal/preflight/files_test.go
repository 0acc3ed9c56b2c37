package preflight

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// write puts files into a directory of their own and returns its path.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "DIR", dir)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What is imported later wins, key by key; files may import each other.
func TestReadContainerd(t *testing.T) {
	dir := write(t, map[string]string{
		"config.toml": `version = 3
imports = ["conf.d/*.toml", "DIR/config.toml"]
[plugins.'io.containerd.nri.v1.nri']
  disable = true
  socket_path = "/run/a.sock"
  plugin_request_timeout = "2s"
  [plugins.'io.containerd.nri.v1.nri'.default_validator]
    enable = true
    required_plugins = ["a", "b"]
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/opt/cni/bin"]`,
		"conf.d/1.toml": "version = 2\n[plugins.\"io.containerd.nri.v1.nri\"]\ndisable = false\nplugin_request_timeout = \"10s\"",
		"conf.d/2.toml": "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n[plugins.'io.containerd.nri.v1.nri'.default_validator]\nrequired_plugins = []",
	})
	c, err := readContainerd(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(c.files) != 3 || c.Changed.IsZero() {
		t.Errorf("read %v, %v", c.files, c.Changed)
	}
	if c.Disable == nil || *c.Disable || c.DisableConnections != nil || c.Socket != "/run/a.sock" || c.RequestTimeout != "10s" ||
		c.Validator == nil || !*c.Validator || len(c.Required) != 0 || c.CDI == nil || !*c.CDI {
		t.Errorf("%+v", c)
	}
}

func TestReadContainerdFails(t *testing.T) {
	dir := write(t, map[string]string{"bad.toml": "plugins = 3", "glob.toml": `imports = ["["]`, "worse.toml": "x"})
	for file, words := range map[string]string{"none.toml": "no such file", "bad.toml": "bad.toml: ", "glob.toml": "syntax error in pattern", "worse.toml": "worse.toml: "} {
		if _, err := readContainerd(filepath.Join(dir, file)); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestReadKubelet(t *testing.T) {
	dir := write(t, map[string]string{
		"a.yaml": "kind: KubeletConfiguration\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: unix:///run/x.sock\nmaxPods: 10",
		"b.yaml": "- 1",
	})
	c, err := readKubeletConfig(filepath.Join(dir, "a.yaml"))
	if err != nil || c.CgroupDriver != "systemd" || c.runtimeSocket() != "/run/x.sock" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := readKubeletConfig(filepath.Join(dir, "b.yaml")); err == nil || !strings.Contains(err.Error(), "b.yaml") {
		t.Error(err)
	}
	if got := (kubeletConfig{}).runtimeSocket(); got == "" {
		t.Error("there is no default")
	}
}

func TestConfigFile(t *testing.T) {
	for args, want := range map[string]string{
		"containerd": "", "containerd --config=/a": "/a", "containerd -c /b --log-level debug": "/b", "containerd --log-level=info --config /c": "/c",
		"containerd -c": "", "config x": "",
	} {
		if got := (Runtime{args: strings.Fields(args)}).configFile(); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
}

// containerd's own words, cut down.
func TestDefaultHandler(t *testing.T) {
	type handler struct {
		oci     string
		systemd bool
	}
	for text, want := range map[string]handler{
		`{"containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"BinaryName":"","SystemdCgroup":true}}}}}`: {"runc", true},
		`{"containerd":{"defaultRuntimeName":"x","runtimes":{"x":{"options":{"BinaryName":"/usr/bin/crun"}},"y":{}}}}`:        {"crun", false},
		`{"containerd":{"defaultRuntimeName":"z","runtimes":{}}}`:                                                             {},
		``: {}, `[]`: {},
	} {
		oci, systemd := defaultHandler(text)
		if got := (handler{oci, systemd}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
