// Package gobuild runs the go command for builds that may take minutes, and reports what is compiled, how far the build is and
// about how long it still takes: on a terminal in one line that changes, in a log by a line every 15 seconds.
package gobuild

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Build is what is built by one call of the go command.
type Build struct {
	Title    string   // what is built, for people: "Kubernetes 1.36.3"
	Kind     Kind     // what is made of the packages
	Dir      string   // where the go command runs; empty: the working directory
	Flags    []string // that decide which packages are compiled, and how: -tags, -race, -mod
	Output   []string // further flags of go build or go test -c: -o, -ldflags
	Packages []string
	Env      []string // besides the environment of this process: "CGO_ENABLED=0"
}

// A Kind is what a build makes of its packages.
type Kind int

const (
	Programs     Kind = iota // the programs that the packages are
	Tests                    // a program of the tests of one package
	Dependencies             // nothing: all that the packages and their tests import from other modules is compiled
)

// Run builds, and reports the progress to log. A build whose packages are all compiled already reports nothing. The error contains the
// end of what the go command prints.
func Run(ctx context.Context, log io.Writer, b Build) error {
	p := newProgress(log, b.Title)
	defer p.end()
	sources, err := b.sources(ctx, p)
	if err != nil {
		return err
	}
	p.expect(sources)
	flags := append([]string{"build", "-v"}, b.Flags...)
	if b.Kind == Programs {
		return b.run(ctx, p, append(append(flags, b.Output...), b.Packages...))
	}
	// go test does not report what it compiles.
	imported := flags
	for _, s := range sources {
		if s.module != "" && !s.main {
			imported = append(imported, s.path)
		}
	}
	if err := b.run(ctx, p, imported); err != nil || b.Kind == Dependencies {
		return err
	}
	return b.run(ctx, p, append(append(append([]string{"test", "-c"}, b.Flags...), b.Output...), b.Packages...))
}

// run runs the go command, which names the packages that it compiles.
func (b Build) run(ctx context.Context, p *progress, args []string) error {
	cmd := b.command(ctx, args...)
	var output strings.Builder
	printed := &lines{each: func(line string) {
		if !p.begins(line) && !downloading(line) {
			output.WriteString(line)
		}
	}}
	cmd.Stdout, cmd.Stderr = printed, printed
	if err := cmd.Run(); err != nil {
		return b.failed(ctx, cmd, err, output.String())
	}
	return nil
}

func (b Build) failed(ctx context.Context, cmd *exec.Cmd, err error, output string) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	command := strings.Join(cmd.Args, " ")
	return fmt.Errorf("%s (in %s): %w\n%s", command[:min(len(command), 1000)], cmd.Dir, err, lastLines(output, 30))
}

func (b Build) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = b.Dir
	cmd.Env = append(os.Environ(), b.Env...)
	// The go command removes its work directory at a signal.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// A source is a package that a build consists of.
type source struct {
	path   string // as go build -v prints it
	module string // empty: of Go itself
	main   bool   // of the main module
	size   int64  // bytes of Go files, by which the time to compile it is estimated
}

// sources lists the packages of a build in the order in which the go command begins to compile them, and downloads their modules.
func (b Build) sources(ctx context.Context, p *progress) ([]source, error) {
	const format = "{{.ImportPath}}\t{{with .Module}}{{.Path}}\t{{.Main}}{{else}}\tfalse{{end}}\t{{.Dir}}" +
		"{{range .GoFiles}}\t{{.}}{{end}}{{range .CgoFiles}}\t{{.}}{{end}}"
	args := []string{"list", "-deps", "-f", format}
	if b.Kind != Programs {
		args = append(args, "-test")
	}
	cmd := b.command(ctx, append(append(args, b.Flags...), b.Packages...)...)
	var listed, output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &listed, &lines{each: func(line string) {
		if downloading(line) {
			p.downloaded()
		} else {
			output.WriteString(line)
		}
	}}
	if err := cmd.Run(); err != nil {
		return nil, b.failed(ctx, cmd, err, output.String())
	}
	var all []source
	for line := range strings.Lines(listed.String()) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasSuffix(f[0], ".test") || strings.Contains(f[0], " [") {
			continue // made by go test
		}
		s := source{path: f[0], module: f[1], main: f[2] == "true"}
		for _, file := range f[4:] {
			if info, err := os.Stat(filepath.Join(f[3], file)); err == nil {
				s.size += info.Size()
			}
		}
		all = append(all, s)
	}
	return all, nil
}

func downloading(line string) bool { return strings.HasPrefix(line, "go: downloading ") }

// lines calls each with every line that is written to it, the newline included.
type lines struct {
	each func(string)
	rest []byte
}

func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		at := bytes.IndexByte(l.rest, '\n')
		if at < 0 {
			return len(text), nil
		}
		l.each(string(l.rest[:at+1]))
		l.rest = l.rest[at+1:]
	}
}

func lastLines(text string, n int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-n):], "\n")
}
