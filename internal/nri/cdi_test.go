package nri

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/cdi"
)

func TestCDIEdits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{
		"static/a.yaml": `
cdiVersion: 0.6.0
kind: a.com/x
containerEdits: {deviceNodes: [{path: /dev/all}]}
devices:
- {name: "1", containerEdits: {deviceNodes: [{path: /dev/old}]}}
- {name: "2", containerEdits: {mounts: [{hostPath: /lib, containerPath: /opt/lib}]}}
- {name: "3", containerEdits: {deviceNodes: [{path: /dev/unasked}]}}
`,
		"run/a.json":     `{"kind": "a.com/x", "devices": [{"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/new", "hostPath": "/dev/null", "permissions": "r"}]}}]}`,
		"run/b.json":     `{"kind": "b.com/x", "devices": [{"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/b"}]}}]}`,
		"run/bad.json":   `a.com/x {`,
		"run/text.txt":   `{"kind": "a.com/x", "devices": [{"name": "2", "containerEdits": {"deviceNodes": [{"path": "/dev/text"}]}}]}`,
		"run/large.json": `{"kind": "a.com/x", "devices": [{"name": "2", "containerEdits": {}}], "x": "` + strings.Repeat("x", maxSpecSize) + `"}`,
		"run/x.json/f":   "",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dirs := []string{filepath.Join(root, "static"), filepath.Join(root, "none"), filepath.Join(root, "run")}
	got := cdiEdits(dirs, []string{"a.com/x=1", "a.com/x=2", "a.com/x=none"})
	want := edits{
		DeviceNodes: []cdiNode{{Path: "/dev/new", HostPath: "/dev/null", Permissions: "r"}, {Path: "/dev/all"}},
		Mounts:      []cdiMount{{HostPath: "/lib", ContainerPath: "/opt/lib"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the edits are %+v, want %+v", got, want)
	}
	if !got.has("/dev/new") || got.has("/dev/old") || !got.covers("/opt//lib/") || got.covers("/opt") {
		t.Errorf("what they contain is not found in %+v", got)
	}
}

func TestDeviceRules_CDIDevice(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		node   cdiNode
		number number
		access string
		ok     bool
	}{
		{cdiNode{Path: "/dev/null"}, number{"c", 1, 3}, "rwm", true},
		{cdiNode{Path: "/dev/x", HostPath: "/dev/zero", Permissions: "r"}, number{"c", 1, 5}, "r", true},
		{cdiNode{Path: "/dev/null", Type: "b", Major: 7, Minor: 1, Permissions: "none"}, number{"b", 7, 1}, "none", true},
		{cdiNode{Path: "/dev/no such device"}, number{}, "", false},
		{cdiNode{Path: "/etc"}, number{}, "rwm", false},
	} {
		got, access, ok := test.node.rule(t.Context(), newChecks())
		if got != test.number || access != test.access || ok != test.ok {
			t.Errorf("%+v: %v %q %v, want %v %q %v", test.node, got, access, ok, test.number, test.access, test.ok)
		}
	}
}

// Any process of root may have written a specification: readSpec takes any content.
func FuzzCDISpecification(f *testing.F) {
	f.Add([]byte(`{"kind": "a.com/x", "devices": [{"name": "1", "containerEdits": {"deviceNodes": [{"path": "/dev/x", "permissions": "r"}]}}]}`))
	f.Add([]byte("kind: a.com/x\ncontainerEdits: {mounts: [{containerPath: /x}]}\ndevices: [{name: '1'}, {name: '2'}]"))
	f.Add([]byte("a.com: &a [*a, *a]"))
	dir := f.TempDir()
	path := filepath.Join(dir, "a.yaml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got := cdiEdits([]string{dir}, []string{"a.com/x=1"})
		for _, n := range got.DeviceNodes {
			n.rule(t.Context(), newChecks())
		}
		if spec, ok := readSpec(path, []string{"a.com/x=1"}); len(got.DeviceNodes)+len(got.Mounts) > 0 && (!ok || spec.Kind != "a.com/x") {
			t.Errorf("a specification of %q yields %+v", spec.Kind, got)
		}
	})
}

func TestCDILacks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := `{"cdiVersion": "0.6.0", "kind": "v.example/gpu", "devices": [
		{"name": "ok", "containerEdits": {"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null"}, {"path": "/dev/zero"}], "mounts": [{"hostPath": "/", "containerPath": "/x"}]}},
		{"name": "node", "containerEdits": {"deviceNodes": [{"path": "/dev/none"}]}},
		{"name": "mount", "containerEdits": {"mounts": [{"hostPath": "/none", "containerPath": "/x"}]}}]}`
	if err := os.WriteFile(filepath.Join(dir, "spec.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	for names, want := range map[string]string{
		"ok":         "",
		"ok node":    "its CDI device v.example/gpu=node has the device node /dev/none, which the host does not have",
		"mount":      "its CDI device v.example/gpu=mount mounts /none, which the host does not have",
		"ok unknown": "no CDI specification in " + dir + " or /none has its device v.example/gpu=unknown",
	} {
		var all []string
		for _, name := range strings.Fields(names) {
			all = append(all, "v.example/gpu="+name)
		}
		if got := cdiLacks([]string{dir, "/none"}, all); got != want {
			t.Errorf("%s: %q, want %q", names, got, want)
		}
	}
}

// Claims have a file for each request, maybe thousands: they do not count among the specifications of plugins.
func TestCDISpecs_FilesOfClaims_HideNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("v.yaml", `{"cdiVersion": "0.6.0", "kind": "v.example/gpu", "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}]}`)
	for i := range maxSpecs {
		write(fmt.Sprintf("devmgrd.io-claim_c%d_r.json", i), "{}")
	}
	if !cdi.IsFile("devmgrd.io-claim_c0_r.json") {
		t.Error("the names are not those of files of claims")
	}
	if lacks := cdiLacks([]string{dir}, []string{"v.example/gpu=0"}); lacks != "" {
		t.Error(lacks)
	}
}
