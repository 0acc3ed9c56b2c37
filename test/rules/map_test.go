package rules

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	"go.yaml.in/yaml/v3"
)

// A mapped is an entry of test/map.yaml.
type mapped struct {
	Package string
	Tests   []string // beginnings of names
	Run     []string // make targets
}

// The map in CONTRIBUTING.md has each package once, names tests and targets that exist, and has the measured times.
func TestMap_EachPackage_IsInContributing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "test/map.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var all []mapped
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&all); err != nil {
		t.Fatal(err)
	}
	tests := endToEnd(t)
	inMainJob, err := declared(filepath.Join(root, "test/mainjob"))
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	seconds := measured(t)
	var block strings.Builder
	table := tabwriter.NewWriter(&block, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "package\tunit\tmain job\tend to end\tmake")
	var packages []string
	for _, m := range all {
		packages = append(packages, m.Package)
		var mainJob, onKubernetes []string
		for _, begin := range m.Tests {
			begins := func(name string) bool { return strings.HasPrefix(name, begin) }
			name := strings.TrimPrefix(begin, "Test")
			if slices.ContainsFunc(slices.Collect(maps.Keys(inMainJob)), begins) {
				mainJob = append(mainJob, name)
			}
			if slices.ContainsFunc(slices.Collect(maps.Keys(tests)), func(other string) bool { return begins(other) && !inMainJob[other] }) {
				onKubernetes = append(onKubernetes, name)
			}
			if !slices.ContainsFunc(slices.Collect(maps.Keys(tests)), begins) {
				t.Errorf("test/map.yaml: no test of %s begins with %s", m.Package, begin)
			}
		}
		var run []string
		for _, command := range m.Run {
			target, _, _ := strings.Cut(command, " ")
			if !strings.Contains(string(makefile), "\n"+target+":") {
				t.Errorf("test/map.yaml: %s has make %s, and there is no such target", m.Package, target)
			}
			run = append(run, target)
		}
		unit := ""
		if s, measured := seconds[m.Package]; measured {
			unit = s + "s"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", m.Package, unit,
			strings.Join(mainJob, "|"), strings.Join(onKubernetes, "|"), strings.Join(run, ","))
	}
	for name := range tests {
		ofAPackage := func(m mapped) bool {
			return slices.ContainsFunc(m.Tests, func(begin string) bool { return strings.HasPrefix(name, begin) })
		}
		if strings.HasPrefix(name, "Test") && name != "TestMain" && !slices.ContainsFunc(all, ofAPackage) {
			t.Errorf("test/map.yaml: %s tests no package", name)
		}
	}
	if want := productPackages(t); !slices.Equal(packages, want) {
		t.Errorf("test/map.yaml has the packages %q, want %q", packages, want)
	}
	table.Flush()
	lines := strings.Split(block.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	generated(t, "CONTRIBUTING.md", "test/map.yaml", "```text\n"+strings.Join(lines, "\n")+"```\n")
}

// productPackages returns the directories that have Go code which is written by hand, but for helpers of tests.
func productPackages(t *testing.T) (all []string) {
	for _, top := range []string{"client", "cmd", "config", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, entry fs.DirEntry, err error) error {
			dir, ok := strings.CutPrefix(filepath.ToSlash(filepath.Dir(file)), filepath.ToSlash(root)+"/")
			if err == nil && ok && strings.HasSuffix(file, ".go") && !strings.HasSuffix(dir, "test") && !slices.Contains(all, dir) {
				all = append(all, dir)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(all)
	return all
}

// endToEnd returns the names in the end-to-end tests.
func endToEnd(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, dir := range []string{"test/e2e", "test/mainjob"} {
		found, err := declared(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, found)
	}
	return all
}

// measured returns the times of test/seconds.txt. Each of its tests and packages exists.
func measured(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "test/seconds.txt"))
	if err != nil {
		t.Fatal(err)
	}
	tests := endToEnd(t)
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		seconds, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case strings.HasPrefix(name, "make "):
		case strings.HasPrefix(name, "Test"):
			if !tests[name] {
				t.Errorf("test/seconds.txt has %s, which does not exist", name)
			}
		default:
			if _, err := os.Stat(filepath.Join(root, name)); err != nil {
				t.Errorf("test/seconds.txt: %v", err)
			}
		}
		all[name] = seconds
	}
	return all
}

// The times of make targets in documents are the measured ones.
func TestTimes_InDocuments_AreMeasured(t *testing.T) {
	seconds := measured(t)
	var table strings.Builder
	table.WriteString("| command | everything built | empty caches |\n|---|---|---|\n")
	for _, target := range []string{"check", "test", "e2e", "demo", "demo ACT=1", "cluster", "package", "chaos", "machine", "arm64", "upstream", "matrix", "scale"} {
		cells := []string{seconds["make "+target], seconds["make "+target+", empty caches"]}
		for i, c := range cells {
			if c != "" {
				cells[i] = c + " s"
			}
		}
		fmt.Fprintf(&table, "| `make %s` | %s |\n", target, strings.Join(cells, " | "))
	}
	generated(t, "CONTRIBUTING.md", "test/seconds.txt", table.String())
	generated(t, "README.md", "test/seconds.txt", fmt.Sprintf("On two processors the first run takes %s s, its first act alone %s s, and each later run %s s.\n",
		seconds["make demo, empty caches"], seconds["make demo ACT=1, empty caches"], seconds["make demo"]))
}
