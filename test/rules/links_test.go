package rules

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	source  = regexp.MustCompile("`([a-z]+(?:/[a-z0-9_]+)+\\.go)`")
	fence   = regexp.MustCompile("(?ms)^```.*?^```")
)

// Links between the project's files lead to a file, and to a heading in it. Source files that documents name exist.
func TestLinks(t *testing.T) {
	root := filepath.Join("..", "..")
	out, err := exec.Command("git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, checked := strings.Fields(string(out)), 0
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) { // removed, and not committed yet
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range source.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				if _, err := os.Stat(filepath.Join(root, "internal", m[1])); err != nil {
					t.Errorf("%s names %s, which is not there", file, m[1])
				}
			}
		}
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
			to := m[1] + m[2]
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			checked++
			path, anchor, _ := strings.Cut(to, "#")
			target := filepath.Join(root, filepath.Dir(file), path)
			if path == "" {
				target = filepath.Join(root, file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which is not there", file, to)
				continue
			}
			if anchor != "" && filepath.Ext(target) == ".md" && !anchors(t, target)[anchor] {
				t.Errorf("%s links to %s: there is no such heading", file, to)
			}
		}
	}
	if checked < 200 {
		t.Errorf("only %d links in %d files: the test has missed some", checked, len(files))
	}
}

// anchors returns the names by which the headings of a document are linked to.
func anchors(t *testing.T, path string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		name := strings.ToLower(link.ReplaceAllString(m[1], ""))
		name = regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(name, "")
		all[strings.ReplaceAll(name, " ", "-")] = true
	}
	return all
}
