package config

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// aged is a table as it may be one day.
var aged = []deprecation{
	{key: "plugins.absence", since: "0.3.0", now: "plugins.gracePeriod"},
	{key: "ignored", since: "0.4.0", now: "plugins.ignoredResources"},
	{key: "old.group.expected", since: "0.4.0", now: "node.expected"},
	{key: "metrics.legacy", since: "0.5.0"},
}

func TestDeprecatedKey_EachSource_WorksWithAWarning(t *testing.T) {
	file := write(t, "plugins:\n  absence: 2m\nold: {group: {expected: {vendor.example/gpu: 8}}}\nmetrics:\n  legacy: {any: [thing]}\n")
	var warnings []string
	o := Options{File: file, Environ: []string{"DEVMGRD_IGNORED=a.example/x", "DEVMGRD_METRICS_LEGACY=yes"}, Set: []string{"plugins.absence=3m"}}
	o.Warn = func(m Mistake) { warnings = append(warnings, m.String()) }
	c, from, err := load(o, box(o.Environ...), aged)
	if err != nil {
		t.Fatal(err)
	}
	if c.Plugins.GracePeriod != 3*time.Minute || from["plugins.gracePeriod"] != "--set" {
		t.Errorf("plugins.gracePeriod is %s from %s", c.Plugins.GracePeriod, from["plugins.gracePeriod"])
	}
	if len(c.Plugins.IgnoredResources) != 1 || from["plugins.ignoredResources"] != "DEVMGRD_IGNORED" {
		t.Errorf("plugins.ignoredResources is %q from %s", c.Plugins.IgnoredResources, from["plugins.ignoredResources"])
	}
	if c.Node.Expected["vendor.example/gpu"] != 8 || from["node.expected"] != file+":3" {
		t.Errorf("node.expected is %v from %s", c.Node.Expected, from["node.expected"])
	}
	want := strings.Join([]string{
		file + ":2: plugins.absence: is deprecated since 0.3.0; rename it to plugins.gracePeriod",
		file + ":3: old.group.expected: is deprecated since 0.4.0; rename it to node.expected",
		file + ":5: metrics.legacy: is deprecated since 0.5.0 and has no effect; remove it",
		"DEVMGRD_IGNORED: ignored: is deprecated since 0.4.0; rename it to plugins.ignoredResources",
		"DEVMGRD_METRICS_LEGACY: metrics.legacy: is deprecated since 0.5.0 and has no effect; remove it",
		"--set: plugins.absence: is deprecated since 0.3.0; rename it to plugins.gracePeriod",
	}, "\n")
	if got := strings.Join(warnings, "\n"); got != want {
		t.Errorf("the warnings are\n%s\nwant\n%s", got, want)
	}
	var printed bytes.Buffer
	if err := c.WriteYAML(&printed, from); err != nil {
		t.Fatal(err)
	}
	for _, d := range aged {
		if name := d.key[strings.LastIndex(d.key, ".")+1:] + ":"; name != "expected:" && strings.Contains(printed.String(), name) {
			t.Errorf("%s is printed:\n%s", d.key, &printed)
		}
	}
	if !strings.Contains(printed.String(), "gracePeriod: 3m0s # --set") {
		t.Errorf("the new name is not printed:\n%s", &printed)
	}
}

func TestDeprecatedKey_WithTheNewOne_IsRefused(t *testing.T) {
	file := write(t, "plugins:\n  gracePeriod: 2m\n  absence: 3m\n")
	_, _, err := load(Options{File: file}, box(), aged)
	if want := file + ":3: plugins.absence: is the former name of plugins.gracePeriod, which is set in " + file + ":2; remove plugins.absence"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	// A later source wins, whichever name it uses.
	c, _, err := load(Options{File: write(t, "plugins: {absence: 2m}\n"), Set: []string{"plugins.gracePeriod=3m"}}, box(), aged)
	if err != nil || c.Plugins.GracePeriod != 3*time.Minute {
		t.Errorf("plugins.gracePeriod is %s, %v", c.Plugins.GracePeriod, err)
	}
	_, _, err = load(Options{File: write(t, "plugins: {absence: soon}\n")}, box(), aged)
	if err == nil || !strings.Contains(err.Error(), `"soon" is not a duration`) {
		t.Errorf("a value of another type: %v", err)
	}
}

// Each row of the table leads to a key that there is, and none hides one.
func TestDeprecations_LeadToKeys(t *testing.T) {
	c := defaults()
	keys := map[string]bool{"": true}
	for _, f := range fields(&c) {
		keys[f.key] = true
	}
	for _, d := range deprecations() {
		if !keys[d.now] || keys[d.key] || d.since == "" {
			t.Errorf("%+v", d)
		}
	}
}
