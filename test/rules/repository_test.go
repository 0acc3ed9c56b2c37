package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Workflows run the actions of others at a commit, since a tag may move.
func TestWorkflows_ActionsAreCommits(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%d workflows: %v", len(files), err)
	}
	pinned := regexp.MustCompile(`^uses: (\./\S+|\S+@[0-9a-f]{40} # v[0-9.]+)$`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "- ")
			if strings.HasPrefix(line, "uses:") && !pinned.MatchString(line) {
				t.Errorf("%s: %s: name the commit, and its version after #", file, line)
			}
		}
	}
}

// Updates are looked for in each Go module of the repository.
func TestDependabotKnowsEachModule(t *testing.T) {
	root := filepath.Join("..", "..")
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "go.mod", "*/go.mod").Output()
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, file := range strings.Fields(string(out)) {
		modules = append(modules, filepath.Join("/", filepath.Dir(file)))
	}
	text, err := os.ReadFile(filepath.Join(root, ".github", "dependabot.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var settings struct {
		Updates []struct {
			Ecosystem   string `json:"package-ecosystem"`
			Directories []string
		}
	}
	if err := yaml.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	var known []string
	for _, u := range settings.Updates {
		if u.Ecosystem == "gomod" {
			known = append(known, u.Directories...)
		}
	}
	slices.Sort(modules)
	slices.Sort(known)
	if !slices.Equal(known, modules) {
		t.Errorf("updates are looked for in\n%q, and there are\n%q", known, modules)
	}
}

// make check vets all files at once, with the tag e2e: no other constraint leaves a file out, but for what internal/locks has for the race detector.
func TestConstraintsAreTheTagE2E(t *testing.T) {
	root := filepath.Join("..", "..")
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	tagged := 0
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "//go:build") {
				tagged++
				if line != "//go:build e2e\n" && filepath.Dir(file) != "internal/locks" {
					t.Errorf("%s has %q", file, strings.TrimSpace(line))
				}
			}
		}
	}
	if tagged == 0 {
		t.Error("no file has a constraint")
	}
}

// The check of commit messages takes a good one and refuses each kind of bad one.
func TestCommitMessages(t *testing.T) {
	for message, complaint := range map[string]string{
		"allocator: release the hold when a plugin dies\n\nWhy.\n":    "",
		"store, nri: keep the sum\n":                                  "",
		"test/e2e: wait for the socket\n\nWhy.\n\n# a comment\n":      "",
		"Merge branch 'x'\n":                                          "",
		"release the hold\n":                                          "begin with the package",
		"allocator: the hold is released\n":                           "imperative",
		"allocator: what a plugin leaves\n":                           "imperative",
		"allocator: Release the hold\n":                               "lower case",
		"allocator: release the hold.\n":                              "full stop",
		"allocator: release the hold\nwhen a plugin dies\n":           "empty line",
		"allocator: release " + strings.Repeat("the hold ", 7) + "\n": "72 at most",
	} {
		file := filepath.Join(t.TempDir(), "message")
		if err := os.WriteFile(file, []byte(message), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(filepath.Join("..", "..", "scripts", "commit-msg"), file).CombinedOutput()
		if (err == nil) != (complaint == "") || !strings.Contains(string(out), complaint) {
			t.Errorf("%q: %v, %q, want %q", message, err, out, complaint)
		}
	}
}
