//go:build e2e

package e2e

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what commands print into the documents that show it")

// A document is a file in docs.
type document struct {
	t          *testing.T
	path, text string
}

func openDocument(t *testing.T, name string) *document {
	t.Helper()
	path := filepath.Join("..", "..", "docs", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return &document{t, path, string(text)}
}

// A block is code in a document: lines that are indented further than the items of a list.
type block struct{ indent, text string }

// String returns the block as the document has it.
func (b block) String() string {
	var all strings.Builder
	for line := range strings.Lines(b.text) {
		if line != "\n" {
			all.WriteString(b.indent)
		}
		all.WriteString(line)
	}
	return all.String()
}

// blocks returns the blocks of the section with this heading.
func (d *document) blocks(heading string) (all []block) {
	d.t.Helper()
	_, section, found := strings.Cut(d.text, "\n## "+heading+"\n")
	if !found {
		d.t.Fatalf("%s has no section %q", d.path, heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	var now *block
	for line := range strings.Lines(section) {
		code := strings.TrimLeft(line, " ")
		switch indent := line[:len(line)-len(code)]; {
		case code == "\n" && now != nil:
			now.text += line
		case len(indent) < 4:
			now = nil
		case now == nil:
			all = append(all, block{indent, code})
			now = &all[len(all)-1]
		default:
			now.text += strings.TrimPrefix(line, now.indent)
		}
	}
	for i := range all {
		all[i].text = strings.TrimRight(all[i].text, "\n") + "\n"
	}
	return all
}

// replace writes another text of a block into the document.
func (d *document) replace(old, now block) {
	d.t.Helper()
	d.text = strings.Replace(d.text, old.String(), now.String(), 1)
	if err := os.WriteFile(d.path, []byte(d.text), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

// A shell plays the sessions of a document.
type shell struct {
	*harness
	dir string // the working directory
	env []string
	do  map[string]func() // commands that the test plays itself
}

// file writes a block that begins with the comment "# PATH" to that file, and reports whether it is one.
func (s *shell) file(b block) bool {
	s.t.Helper()
	name, found := strings.CutPrefix(b.text, "# ")
	name, _, _ = strings.Cut(name, "\n")
	if !found {
		return false
	}
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(s.dir, path)
	}
	s.must(os.MkdirAll(filepath.Dir(path), 0o755))
	s.must(os.WriteFile(path, []byte(b.text), 0o644))
	return true
}

// play runs the commands of a session, which are the lines that begin with "$ ", and returns the session with what they have printed. If
// that is not what the session shows, it runs commands that change nothing again, for as long as a busy machine may take.
func (s *shell) play(session string) (played string) {
	s.t.Helper()
	steps := strings.Split("\n"+session, "\n$ ")
	if len(steps) < 2 || steps[0] != "" {
		s.t.Fatalf("not a session:\n%s", session)
	}
	for _, step := range steps[1:] {
		command, want, _ := strings.Cut(strings.TrimRight(step, "\n")+"\n", "\n")
		reads := slices.ContainsFunc([]string{"kubectl get ", "devmgrd assignments"}, func(p string) bool { return strings.HasPrefix(command, p) })
		var got string
		var err error
		right := func() bool {
			got, err = s.output(command)
			return err == nil && steady(got) == steady(want)
		}
		switch {
		case reads && !*update:
			s.comes(right)
		default:
			right()
		}
		if err != nil {
			s.t.Fatalf("$ %s\n%s%v", command, got, err)
		}
		if !*update && steady(got) != steady(want) {
			s.t.Fatalf("$ %s\n%s\nand the document shows\n%s", command, got, want)
		}
		played += "$ " + command + "\n" + varying.ReplaceAllString(got, example)
	}
	return played
}

// output runs a command, and returns what it prints.
func (s *shell) output(command string) (string, error) {
	s.t.Helper()
	if f := s.do[command]; f != nil {
		f()
		return "", nil
	}
	cmd := exec.CommandContext(s.ctx, "bash", "-c", "set -o pipefail; "+command)
	cmd.Dir, cmd.Env = s.dir, s.env
	out, err := cmd.CombinedOutput()
	if len(out) > 0 && !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, '\n')
	}
	return string(out), err
}

// varying are ages, which differ from one run to the next. A document shows the example.
var varying = regexp.MustCompile(`\b[0-9]+(ms|s|m|m[0-9]+s)\b`)

const example = "5s"

// steady returns what a command prints without what varies: ages and the widths of columns.
func steady(out string) string {
	var all []string
	for line := range strings.Lines(out) {
		all = append(all, strings.Join(strings.Fields(varying.ReplaceAllString(line, example)), " "))
	}
	return strings.Join(all, "\n")
}
