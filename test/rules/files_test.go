package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// listedFile matches a line of a package's list of its files: the file names first, with commas between them.
	listedFile = regexp.MustCompile(`(?m)^//\t[a-z_]+\.go\b`)
	// goFile matches the name of a Go file, or its path.
	goFile = regexp.MustCompile(`[A-Za-z0-9_./-]*[A-Za-z0-9_]+\.go\b`)
)

// The files that a package's comment names are there. If it lists the package's files, it names them all.
func TestPackageComments_NameTheFiles(t *testing.T) {
	listing := 0
	for _, top := range []string{"internal", "config", "cmd", "client", "test"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "doc.go" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			dir := filepath.Dir(path)
			named := map[string]bool{}
			for _, name := range goFile.FindAllString(string(text), -1) {
				named[name] = true
				if !exists(dir, name) {
					t.Errorf("%s names %s, which is not there", path, name)
				}
			}
			if len(listedFile.FindAllString(string(text), -1)) < 3 {
				return nil
			}
			listing++
			files, err := filepath.Glob(filepath.Join(dir, "*.go"))
			for _, f := range files {
				if name := filepath.Base(f); name != "doc.go" && !strings.HasSuffix(name, "_test.go") && !named[name] {
					t.Errorf("%s lists files of the package, and %s is not among them", path, name)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if listing < 5 {
		t.Errorf("only %d packages list their files", listing)
	}
}

// exists reports whether a file is in a directory, or below the repository, or in a package below internal.
func exists(dir, name string) bool {
	return slices.ContainsFunc([]string{dir, root, filepath.Join(root, "internal")}, func(at string) bool {
		_, err := os.Stat(filepath.Join(at, name))
		return err == nil
	})
}

// The Go files that documents name in backquotes are there: by their paths, or somewhere where only a name stands.
func TestDocuments_NameFilesThatExist(t *testing.T) {
	quoted := regexp.MustCompile("`([^`\n]*\\.go)`")
	documents, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	decisions, err := filepath.Glob(filepath.Join(root, "docs", "decisions", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	names, present := 0, map[string]bool{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		present[d.Name()] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(append(documents, decisions...), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "THREATS.md"), filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(path) == "conformance.md" {
			continue // it names the kubelet's
		}
		for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
			names++
			if !present[m[1]] && !exists(root, m[1]) {
				t.Errorf("%s names %s, which is not there", path, m[1])
			}
		}
	}
	if names < 30 {
		t.Errorf("only %d names were found", names)
	}
}

// The packages whose tests "make arm64" runs are there.
func TestMakefile_Arm64_NamesPackagesThatExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, found := strings.Cut(string(text), "$(addprefix ./internal/,")
	list, _, _ = strings.Cut(list, ")")
	names := strings.Fields(strings.ReplaceAll(list, "\\", ""))
	if !found || len(names) < 10 {
		t.Fatalf("only %d packages were found", len(names))
	}
	for _, name := range names {
		if info, err := os.Stat(filepath.Join(root, "internal", strings.TrimSuffix(name, "/..."))); err != nil || !info.IsDir() {
			t.Errorf("internal/%s is not there", name)
		}
	}
}
