package nri

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
)

type reports []string

func (r *reports) NotAllowed(pod device.Pod, why string) { *r = append(*r, pod.String()+": "+why) }

// ruled has a plugin ask rules for a.com/x.
func ruled(t testing.TB, p *plugin, grants string, enforce bool) *reports {
	t.Helper()
	rules, err := pluginrules.Parse([]byte("rules:\n- name: x\n  resources: [a.com/x]\n  grants: " + grants))
	if err != nil {
		t.Fatal(err)
	}
	notifier := &reports{}
	p.Rules = pluginrules.New(pluginrules.Config{
		Rules: rules, Enforce: enforce, Notifier: notifier, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	return notifier
}

// A container gets what the rules allow. A grant of the state file may be older than the rules; it is compared too, and so is what its
// paths lead to.
func TestRules(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	allowed, outside := filepath.Join(dir, "allowed"), filepath.Join(dir, "outside")
	for _, path := range []string{filepath.Join(allowed, "lib"), outside} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for at, to := range map[string]string{"link": outside, "inside": filepath.Join(allowed, "lib"), "dev": "/dev/zero", "devices": "/dev"} {
		if err := os.Symlink(to, filepath.Join(allowed, at)); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(path string) device.Grant {
		return device.Grant{Mounts: []device.Mount{{HostPath: path, ContainerPath: "/m"}}}
	}
	node := func(path string) device.Grant {
		return device.Grant{Nodes: []device.Node{{HostPath: path, ContainerPath: "/dev/x", Permissions: "rw"}}}
	}
	mounts, fresh := "{mounts: ["+allowed+"]}", true
	for name, test := range map[string]struct {
		grants string
		grant  device.Grant
		fresh  bool
		want   string // part of why not; empty: it is given
	}{
		"mount":                       {mounts, mount(allowed + "/lib"), false, ""},
		"link that stays inside":      {mounts, mount(allowed + "/inside"), false, ""},
		"mount of another path":       {mounts, mount(outside), false, "rule x does not allow what the plugin of a.com/x grants: mount of " + outside},
		"path with ..":                {mounts, mount(allowed + "/../outside"), false, "mount of " + allowed + "/../outside"},
		"link that leads outside":     {mounts, mount(allowed + "/link"), false, allowed + "/link, which leads to " + outside},
		"new directory":               {mounts, mount(allowed + "/a/b"), fresh, ""},
		"new directory, through it":   {mounts, mount(allowed + "/link/new"), fresh, "which leads to " + outside + "/new"},
		"device by path":              {"{devices: [/dev/null]}", node("/dev/null"), false, ""},
		"another device":              {"{devices: [/dev/null]}", node("/dev/zero"), false, "device /dev/zero"},
		"device by a link":            {"{devices: [" + allowed + "]}", node(allowed + "/dev"), false, allowed + "/dev, which leads to /dev/zero (c:1)"},
		"device by a link, by number": {`{devices: ["c:1"]}`, node(allowed + "/dev"), false, ""},
		"device of another number":    {`{devices: ["b:1", "c:2"]}`, node("/dev/null"), false, "device /dev/null (c:1)"},
		"directory of devices":        {"{devices: [/dev]}", node("/dev"), false, ""},
		"directory by a link":         {"{devices: [" + allowed + "]}", node(allowed + "/devices"), false, "which leads to /dev/"},
		"directory, some by number":   {`{devices: ["c:1"]}`, node("/dev"), false, "rule x does not allow what the plugin of a.com/x grants: device /dev/"},
		"variable":                    {"{env: [A]}", device.Grant{Env: map[string]string{"A": ""}}, false, ""},
		"another variable":            {"{env: [A]}", device.Grant{Env: map[string]string{"B": ""}}, false, "variable B"},
	} {
		p, w := newPlugin(t)
		ruled(t, p, test.grants, true)
		st := ready()
		st.Fresh = test.fresh
		st.Assignment.Shares[0].Grant = test.grant
		w.set(st)
		adj, _, err := p.CreateContainer(t.Context(), sandbox(), container())
		if test.want == "" {
			if err != nil || len(adj.GetMounts()) != len(test.grant.Mounts) || len(test.grant.Nodes) > 0 && len(adj.GetLinux().GetDevices()) == 0 {
				t.Errorf("%s: %v, %v", name, adj, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "PluginNotAllowed") {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		// The plugin is asked again: it may grant something else now.
		if want := []string{"main PluginNotAllowed lapsed=true"}; !slices.Equal(w.refused, want) || w.claims != 0 {
			t.Errorf("%s: the ledger reports %q, and %d claims stand", name, w.refused, w.claims)
		}
	}
	if _, err := os.Lstat(outside + "/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made through a link: %v", err)
	}

	p, w := newPlugin(t)
	reports := ruled(t, p, mounts, false)
	st := ready()
	st.Assignment.Shares[0].Grant = mount(allowed + "/link")
	w.set(st)
	for range 2 {
		if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err != nil {
			t.Error(err)
		}
	}
	if len(*reports) != 1 || !strings.HasPrefix((*reports)[0], "ns/pod: container main: rule x does not allow") || !strings.Contains((*reports)[0], "leads to "+outside) {
		t.Errorf("reported: %q", *reports)
	}
}

// Two resources may grant one path, one of them as a device. Each is compared with its own rule.
func TestRules_OnePathOfTwoResources(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	rules, err := pluginrules.Parse([]byte("rules: [{name: x, resources: [a.com/x], grants: {devices: [/dev/null]}}, {name: y, resources: [b.com/y], grants: {mounts: [/dev/null]}}]"))
	if err != nil {
		t.Fatal(err)
	}
	p.Rules = pluginrules.New(pluginrules.Config{Rules: rules, Enforce: true, Notifier: &reports{}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	st := ready()
	st.Assignment.Shares = []device.Share{
		{Resource: "a.com/x", Grant: device.Grant{Nodes: []device.Node{{HostPath: "/dev/null", Permissions: "rw"}}}},
		{Resource: "b.com/y", Grant: device.Grant{Mounts: []device.Mount{{HostPath: "/dev/null", ContainerPath: "/n"}}}},
	}
	w.set(st)
	if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err != nil {
		t.Error(err)
	}
	var stat unix.Stat_t
	if err := unix.Stat("/dev/null", &stat); err != nil || unix.Major(stat.Rdev) != 1 {
		t.Errorf("/dev/null is not what this test takes it for: %v", err)
	}
}
