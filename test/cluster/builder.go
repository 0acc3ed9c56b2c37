package cluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/test/gobuild"
	"github.com/devmgrd/devmgrd/test/lockfile"
)

// A builder builds one group into its directory of the cache, unless that is there already. A directory of the
// cache is complete or absent: a build goes elsewhere and is renamed when it is done.
type builder struct {
	toolGroup
	source string
	cache  string
	log    io.Writer
}

func (b builder) build(ctx context.Context) (dir string, err error) {
	key, err := b.key()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(b.cache, b.name+"-"+key)
	if b.complete(dir) {
		return dir, nil
	}

	if _, err := CurrentRun(); err == nil {
		return "", errors.New("it has to be built outside of the namespaces: name its kit to cluster.Needs in the call of Main")
	}
	held, err := lockfile.Take(ctx, dir+".lock", func() {
		fmt.Fprintf(b.log, "waiting for another build of %s\n", b.describe())
	})
	if err != nil {
		return "", err
	}
	defer held.Close()
	if b.complete(dir) {
		return dir, nil
	}

	if b.cgo {
		if err := ensureSeccomp(ctx, b.log); err != nil {
			return "", err
		}
	}
	fmt.Fprintf(b.log, "building %s\n", b.describe())
	began := time.Now()
	if err := b.compile(ctx, dir); err != nil {
		return "", err
	}
	fmt.Fprintf(b.log, "built %s in %s\n", b.about(), time.Since(began).Round(time.Second))
	return dir, nil
}

// key names a build by everything that decides its outcome.
func (b builder) key() (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, b.cgo, b.tags, b.packages, b.stamp, b.renames, buildFlags)
	for _, input := range b.inputs {
		root := filepath.Join(b.source, b.dir, input)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(b.source, path)
			if err != nil {
				return err
			}
			fmt.Fprintln(h, name, len(content))
			h.Write(content)
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil))[:12], nil
}

func (b builder) complete(dir string) bool {
	return !slices.ContainsFunc(b.programs, func(p string) bool {
		_, err := os.Stat(filepath.Join(dir, p))
		return err != nil
	})
}

// describe is for instance "etcd, kubelet (Kubernetes 1.36.3)".
func (b builder) describe() string {
	return fmt.Sprintf("%s (%s)", strings.Join(b.programs, ", "), b.about())
}

// about is for instance "Kubernetes 1.36.3".
func (b builder) about() string {
	if v := b.version(); v != "" {
		return b.title + " " + strings.TrimPrefix(v, "v")
	}
	return b.title
}

// buildFlags save a quarter of the time that a build takes: outside of the standard library nothing is inlined, and debuggers get nothing.
// The programs behave the same. The standard library is compiled as for other builds, whose cache has most of it: with its inlining the
// API server starts with a fifth less processor time.
var buildFlags = []string{"-buildvcs=false", "-mod=readonly", "-gcflags=all=-l -dwarf=false", "-gcflags=std="}

func (b builder) compile(ctx context.Context, dir string) error {
	tmp, err := os.MkdirTemp(b.cache, b.name+".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}

	ldflags := []string{"-s", "-w"}
	for _, variable := range b.stamp {
		ldflags = append(ldflags, "-X", variable+"="+b.version())
	}
	build := gobuild.Build{
		Title: b.about(), Dir: filepath.Join(b.source, b.dir), Packages: b.packages,
		Flags:  append(slices.Clone(buildFlags), "-tags", b.tags),
		Output: []string{"-ldflags", strings.Join(ldflags, " "), "-o", tmp + "/"},
		Env:    []string{"GOWORK=off", "CGO_ENABLED=" + map[bool]string{false: "0", true: "1"}[b.cgo]},
	}
	if b.suite {
		build.Kind = gobuild.Tests
	}
	if err := gobuild.Run(ctx, b.log, build); err != nil {
		return err
	}
	for from, to := range b.renames {
		if err := os.Rename(filepath.Join(tmp, from), filepath.Join(tmp, to)); err != nil {
			return err
		}
	}
	if !b.complete(tmp) {
		return fmt.Errorf("go build %s (in %s) did not make all of %s", strings.Join(b.packages, " "), build.Dir, strings.Join(b.programs, ", "))
	}
	// What is there, if anything, is incomplete: a file was removed by hand.
	return errors.Join(os.RemoveAll(dir), os.Rename(tmp, dir))
}

// version reads the group's version from its go.mod: "v1.36.3".
func (b builder) version() string {
	if b.release == "" {
		return ""
	}
	content, err := os.ReadFile(filepath.Join(b.source, b.dir, "go.mod"))
	if err != nil {
		return ""
	}
	return required(content, b.release)
}

// required returns the version of a module that a go.mod requires; "": none.
func required(goMod []byte, module string) string {
	for line := range strings.Lines(string(goMod)) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(words) >= 2 && words[0] == module {
			return words[1]
		}
	}
	return ""
}
