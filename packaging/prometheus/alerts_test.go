package prometheus

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// runbook is where a person who is called finds the entries.
const runbook = "https://github.com/devmgrd/devmgrd/blob/main/docs/runbook.md#"

type rules struct {
	Groups []struct {
		Name  string
		Rules []alert
	}
}

type alert struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// read reads a YAML file; strictly, a key that is not known is an error.
func read(t *testing.T, file string, to any, strictly bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(strictly)
	if err := d.Decode(to); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// alerts returns all alerts by name.
func alerts(t *testing.T) map[string]alert {
	t.Helper()
	var r rules
	read(t, "alerts.yaml", &r, true)
	all := map[string]alert{}
	for _, g := range r.Groups {
		for _, a := range g.Rules {
			if _, twice := all[a.Alert]; twice {
				t.Errorf("there are two alerts %s", a.Alert)
			}
			all[a.Alert] = a
		}
	}
	if len(all) < 10 {
		t.Fatalf("only %d alerts were read", len(all))
	}
	return all
}

// Each alert names the fault, its severity and its runbook entry.
func TestAlerts_NameFaultSeverityAndRunbook(t *testing.T) {
	for name, a := range alerts(t) {
		switch severity := a.Labels["severity"]; severity {
		case "critical", "warning", "info":
		default:
			t.Errorf("%s: severity is %q, want critical, warning or info", name, severity)
		}
		for _, key := range []string{"summary", "description"} {
			text := a.Annotations[key]
			if !strings.HasSuffix(text, ".") {
				t.Errorf("%s: its %s is no sentence: %q", name, key, text)
			}
			// absent() has no labels but those that it was asked for.
			if !strings.Contains(text, "$labels.instance") && !strings.HasPrefix(a.Expr, "absent(") {
				t.Errorf("%s: its %s does not say on which node", name, key)
			}
		}
		if got, want := a.Annotations["runbook_url"], runbook+strings.ToLower(name); got != want {
			t.Errorf("%s: runbook_url is %q, want %q", name, got, want)
		}
	}
}

// Each alert has an entry in the runbook, which says what it means, where to look and what to do, and each entry an alert.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	heading := regexp.MustCompile(`(?m)^#+ (.+)$`)
	entries, heads := map[string]string{}, heading.FindAllSubmatchIndex(text, -1)
	for i, at := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		name := string(text[at[2]:at[3]])
		if !strings.HasPrefix(name, "Devmgrd") {
			continue
		}
		if _, twice := entries[name]; twice {
			t.Errorf("there are two entries %s: the link leads to the first", name)
		}
		entries[name] = string(text[at[1]:end])
	}
	all := alerts(t)
	for name := range all {
		if _, there := entries[name]; !there {
			t.Errorf("%s has no entry in the runbook", name)
		}
	}
	for name, entry := range entries {
		if _, there := all[name]; !there {
			t.Errorf("the runbook has an entry for %s, and there is no such alert", name)
		}
		for _, part := range []string{"**Means.** ", "**Look.**", "**Do.**"} {
			if n := strings.Count(entry, "\n"+part); n != 1 {
				t.Errorf("the runbook's entry for %s has %q %d times, want once", name, part, n)
			}
		}
	}
	for _, link := range regexp.MustCompile(`\(#(devmgrd\w+)\)`).FindAllSubmatch(text, -1) {
		found := false
		for name := range entries {
			found = found || strings.ToLower(name) == string(link[1])
		}
		if !found {
			t.Errorf("the runbook links to #%s, which is not there", link[1])
		}
	}
}

// promtool plays the tests (make alerts). That each alert has some, one in which it fires and one in which it does not, is
// seen here.
func TestEachAlertIsTested(t *testing.T) {
	var played struct {
		Tests []struct {
			Name  string
			Check []struct {
				Alert string           `yaml:"alertname"`
				Fires []map[string]any `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		}
	}
	read(t, "alerts_test.yaml", &played, false)
	all, fires, keeps := alerts(t), map[string]bool{}, map[string]bool{}
	for _, test := range played.Tests {
		for _, c := range test.Check {
			if _, there := all[c.Alert]; !there {
				t.Errorf("%s: it tests %s, and there is no such alert", test.Name, c.Alert)
			}
			if len(c.Fires) > 0 {
				fires[c.Alert] = true
			} else {
				keeps[c.Alert] = true
			}
		}
	}
	for name := range all {
		if !fires[name] || !keeps[name] {
			t.Errorf("%s: tested that it fires: %t; that it does not when all is well: %t", name, fires[name], keeps[name])
		}
	}
}
