package rules

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a text tells people to copy from /usr/share/devmgrd is in packaging, which is where that comes from.
func TestWhatIsNamedIsShipped(t *testing.T) {
	named := regexp.MustCompile(`/usr/share/devmgrd/([a-z]+/[a-z-]+\.[a-z]+)`)
	root, found := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root || entry.Name() == "bin" || entry.Name() == "dist"):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if _, err := os.Stat(filepath.Join(root, "packaging", name[1])); err != nil {
				t.Errorf("%s names %s, which is not shipped", path, name[0])
			}
		}
		return nil
	})
	if err != nil || found < 5 {
		t.Errorf("%d names were found: %v", found, err)
	}
}
