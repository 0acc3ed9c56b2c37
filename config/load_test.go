package config

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

// box is a machine named Node-1 with the given environment.
func box(environ ...string) machine {
	return machine{environ, func() (string, error) { return "Node-1", nil }}
}

// write makes a configuration file.
func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func mustLoad(t *testing.T, o Options) (Config, Sources) {
	t.Helper()
	c, from, err := load(o, box(o.Environ...), nil)
	if err != nil {
		t.Fatal(err)
	}
	return c, from
}

// mistakes loads what must be refused.
func mistakes(t *testing.T, o Options) []Mistake {
	t.Helper()
	_, _, err := load(o, box(o.Environ...), nil)
	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return refused.Mistakes
}

func TestDefaults(t *testing.T) {
	c, from := mustLoad(t, Options{File: write(t, "")})
	want := defaults()
	want.NodeName, want.Plugins.SocketDir = "node-1", "/run/devmgrd/device-plugins"
	want.Plugins.RegistryDir = "/run/devmgrd/plugins_registry"
	want.Admin.Socket = "/run/devmgrd/admin.sock"
	want.Release.Socket = "/run/devmgrd/openers.sock"
	want.PodResources.Socket = "/run/devmgrd/pod-resources/kubelet.sock"
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v, want %+v", c, want)
	}
	for _, f := range fields(&c) {
		if from[f.key] != Default {
			t.Errorf("%s comes from %q", f.key, from[f.key])
		}
	}
}

func TestLaterSourcesWin(t *testing.T) {
	file := write(t, "runDir: /run/file\nplugins:\n  gracePeriod: 2m\n  redirect: false\n  ignoredResources: [a.example/x, 'b.example/*']\nnri:\n  index: 07\nlog: {level: warn}\n")
	c, from := mustLoad(t, Options{
		File:    file,
		Environ: []string{"DEVMGRD_RUNDIR=/run/env", "DEVMGRD_METRICS_LISTEN=", "DEVMGRD_LOG_LEVEL=error", "HOME=/root", "NODE_NAME=worker-7"},
		Set:     []string{"log.level=debug", "plugins.maxDevices=7", "log.level=info"},
	})
	want := defaults()
	want.NodeName, want.RunDir, want.Plugins.SocketDir = "worker-7", "/run/env", "/run/env/device-plugins"
	want.Plugins.RegistryDir = "/run/env/plugins_registry"
	want.Admin.Socket = "/run/env/admin.sock"
	want.Release.Socket = "/run/env/openers.sock"
	want.PodResources.Socket = "/run/env/pod-resources/kubelet.sock"
	want.Plugins.GracePeriod, want.Plugins.Redirect, want.Plugins.MaxDevices = 2*time.Minute, false, 7
	want.Plugins.IgnoredResources = []string{"a.example/x", "b.example/*"}
	want.NRI.Index, want.Metrics.Listen = "07", ""
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v\nwant %+v", c, want)
	}
	for key, source := range map[string]string{
		"nodeName": "NODE_NAME", "runDir": "DEVMGRD_RUNDIR", "plugins.socketDir": "default", "plugins.gracePeriod": file + ":3",
		"metrics.listen": "DEVMGRD_METRICS_LISTEN", "log.level": "--set", "plugins.ignoredResources": file + ":5",
	} {
		if from[key] != source {
			t.Errorf("%s comes from %q, want %q", key, from[key], source)
		}
	}
}

func TestListsInOneText(t *testing.T) {
	for text, want := range map[string][]string{
		"":                          {},
		"[]":                        {},
		"a.example/x":               {"a.example/x"},
		"a.example/x, b.example/*":  {"a.example/x", "b.example/*"},
		"[a.example/x,b.example/y]": {"a.example/x", "b.example/y"},
	} {
		c, _ := mustLoad(t, Options{File: write(t, "plugins: {ignoredResources: [old.example/z, old.example/y, old.example/x]}"), Set: []string{"plugins.ignoredResources=" + text}})
		if got := c.Plugins.IgnoredResources; !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// Values may contain what separates names from values, and in a file also commas.
func TestMaps(t *testing.T) {
	want := map[string]string{"a.example/x": "^([^=]*)=", "b.example/*": "numa"}
	for _, o := range []Options{
		{File: write(t, `allocation: {groups: {a.example/x: "^([^=]*)=", b.example/*: numa}}`)},
		{File: write(t, "allocation: {groups: {old.example/z: numa}}"), Set: []string{"allocation.groups=a.example/x=^([^=]*)=, b.example/*=numa"}},
	} {
		if c, _ := mustLoad(t, o); !reflect.DeepEqual(c.Allocation.Groups, want) {
			t.Errorf("%q, want %q", c.Allocation.Groups, want)
		}
	}
	c, _ := mustLoad(t, Options{File: write(t, `allocation: {groups: {a.example/x: "^.{1,3}"}}`)})
	if got := c.Allocation.Groups["a.example/x"]; got != "^.{1,3}" {
		t.Errorf("%q", got)
	}
}

// The shortest time counts, of those for the reason and for the resource.
func TestGiveUp(t *testing.T) {
	w := Wait{GiveUpAfter: map[string]string{"PluginMissing": "30m", "a.example/*": "1h", "a.example/fast": "10m"}}
	for _, c := range []struct {
		reason, resource string
		want             time.Duration
	}{
		{"PluginMissing", "", 30 * time.Minute}, {"PluginMissing", "a.example/x", 30 * time.Minute}, {"PluginMissing", "a.example/fast", 10 * time.Minute},
		{"PluginError", "a.example/x", time.Hour}, {"PluginError", "b.example/x", 0}, {"PluginError", "", 0},
	} {
		if got := w.GiveUp(c.reason, c.resource); got != c.want {
			t.Errorf("%s, %s: %v, want %v", c.reason, c.resource, got, c.want)
		}
	}
	w = Wait{GiveUpAfter: map[string]string{"*": "1h", "a.example/slow": "24h"}}
	if all, slow := w.GiveUp("PluginMissing", ""), w.GiveUp("PluginMissing", "a.example/slow"); all != 0 || slow != 24*time.Hour {
		t.Errorf("of no resource %v, of a slow one %v: the most exact name counts", all, slow)
	}
}

func TestEveryMistakeAtOnce(t *testing.T) {
	file := write(t, strings.Join([]string{
		/* 1 */ "stateDir: relative",
		/* 2 */ "plugin: {}",
		/* 3 */ "plugins:",
		/* 4 */ "  gracePeriod: 1 minute",
		/* 5 */ "  maxDevices: many",
		/* 6 */ "  socketdir: /x",
		/* 7 */ "  maxResources: 1",
		/* 8 */ "  maxResources: 2",
		/* 9 */ "  onTwins: replace",
		/* 10 */ "log: loud",
	}, "\n"))
	got := mistakes(t, Options{
		File:    file,
		Environ: []string{"DEVMGRD_LOG_LEVLE=debug"},
		Set:     []string{"log.format=xml", "nonsense", "metrics.lisen=:1"},
	})
	want := []Mistake{
		{"", "--set", `"nonsense" has no =`, "write it like --set log.level=debug"},
		{"DEVMGRD_LOG_LEVLE", "environment", "there is no such key", "did you mean DEVMGRD_LOG_LEVEL?"},
		{"log", file + ":10", "is not a group of keys", "write key: value lines, indented below it"},
		{"log.format", "--set", `"xml" is not a choice`, "choose one of text, json"},
		{"metrics.lisen", "--set", "there is no such key", "did you mean metrics.listen?"},
		{"plugin", file + ":2", "there is no such key", "remove it"},
		{"plugins.gracePeriod", file + ":4", `"1 minute" is not a duration`, "write it like 1m30s"},
		{"plugins.maxDevices", file + ":5", `"many" is not a whole number`, "write it in digits, like 256"},
		{"plugins.maxResources", file + ":8", "is already set in line 7", "keep one of them"},
		{"plugins.onTwins", file + ":9", "there is no such key", "remove it"},
		{"plugins.socketdir", file + ":6", "there is no such key", "did you mean plugins.socketDir?"},
		{"stateDir", file + ":1", `"relative" is not an absolute path`, "write it from the root, like /var/lib/devmgrd"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", (&Error{got}), (&Error{want}))
	}
}

func TestFile(t *testing.T) {
	for name, c := range map[string]struct{ text, problem string }{
		"not YAML":      {"a: [", "is not YAML"},
		"a list":        {"- a", "is not a group of keys"},
		"two documents": {"log: {}\n---\nlog: {}", "more than one document"},
		"no value":      {"stateDir:", "has no value"},
		"list for text": {"stateDir: [/a]", "is not a text"},
		"text for list": {"plugins: {ignoredResources: a.example/x}", "is not a list"},
		"map in a list": {"plugins: {ignoredResources: [{a: b}]}", "an item is not a text"},
		"text for map":  {"allocation: {order: pack}", "is not a map"},
		"list in a map": {"allocation: {order: {a.example/x: [pack]}}", "has no value"},
		"fraction":      {"plugins: {maxDevices: 1.5}", "is not a whole number"},
		"yes":           {"plugins: {redirect: sometimes}", "is not a boolean"},
	} {
		t.Run(name, func(t *testing.T) {
			got := mistakes(t, Options{File: write(t, c.text)})
			if len(got) != 1 || !strings.Contains(got[0].Problem, c.problem) {
				t.Errorf("got %v, want %q", got, c.problem)
			}
		})
	}
	missing := filepath.Join(t.TempDir(), "none.yaml")
	if got := mistakes(t, Options{File: missing}); len(got) != 1 || got[0].Source != missing {
		t.Errorf("a file that does not exist: %v", got)
	}
	mustLoad(t, Options{File: write(t, "# nothing\n")})
	mustLoad(t, Options{File: write(t, "plugins:\nlog:\n")})
}

func TestReferenceHoldsEveryDefault(t *testing.T) {
	if _, from := mustLoad(t, Options{File: write(t, Reference)}); len(from) == 0 {
		t.Fatal("no sources")
	}
	open := regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(Reference, "$1$2")
	got, from := mustLoad(t, Options{File: write(t, open)})
	want, _ := mustLoad(t, Options{File: write(t, "")})
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	for _, f := range fields(&got) {
		if f.key != "nodeName" && from[f.key] == Default { // the node name has no default that a file could show
			t.Errorf("devmgrd.yaml does not name %s", f.key)
		}
	}
}

func TestPrintedConfigurationLoadsAgain(t *testing.T) {
	for name, o := range map[string]Options{
		"defaults": {File: write(t, "")},
		"odd texts": {
			File: write(t, "nodeName: '007'\nplugins: {ignoredResources: [a.example/x, 'b.example/*'], redirect: false}\nallocation: {groups: {a.example/x: '^(\"a\"|#|007)', '*': '8'}}\nnode: {expected: {a.example/x: 8}}"),
			Set:  []string{"metrics.listen=", "nri.maxWait=0s", "stateDir=/with # hash: and 'quote'"}, Environ: []string{"DEVMGRD_NRI_INDEX=00"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want, from := mustLoad(t, o)
			var text bytes.Buffer
			if err := want.WriteYAML(&text, from); err != nil {
				t.Fatal(err)
			}
			got, _ := mustLoad(t, Options{File: write(t, text.String())})
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v\nwant %+v\nfrom\n%s", got, want, text.String())
			}
			for _, f := range fields(&want) {
				leaf := f.key[strings.LastIndex(f.key, ".")+1:]
				line := regexp.MustCompile(`(?m)^ *` + leaf + `: .* # ` + regexp.QuoteMeta(from[f.key]) + `$`)
				if !line.MatchString(text.String()) {
					t.Errorf("%s from %s is not shown in\n%s", f.key, from[f.key], text.String())
				}
			}
		})
	}
}
