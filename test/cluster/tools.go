package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Tools knows where the built programs are.
type Tools struct {
	dirs []string
	path map[string]string
}

// Path is the file of a program, for instance of "kubelet". It panics for a name that is of none of the kits that were built.
func (t Tools) Path(program string) string {
	path, ok := t.path[program]
	if !ok {
		panic(fmt.Sprintf("cluster: no program %q among the tools", program))
	}
	return path
}

// SearchPath is a value for $PATH that finds the tools first.
func (t Tools) SearchPath(rest string) string {
	return strings.Join(append(slices.Clone(t.dirs), rest), string(filepath.ListSeparator))
}

// Needs returns a function for [Main] that builds kits, outside of the namespaces, where the network is.
func Needs(kits ...Kit) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := Build(ctx, os.Stderr, kits...)
		return err
	}
}

// Build makes the programs of the kits, [Kubernetes] if none is named, that are not in the cache yet, one group after the other, and
// reports the progress to log. That needs the network and takes minutes the first time; when all are there it takes milliseconds and
// needs nothing. Builds that run at the same time wait for one another.
func Build(ctx context.Context, log io.Writer, kits ...Kit) (Tools, error) {
	cache, err := CacheDir()
	if err != nil {
		return Tools{}, err
	}
	source, err := sourceDir()
	if err != nil {
		return Tools{}, err
	}
	if len(kits) == 0 {
		kits = []Kit{Kubernetes}
	}
	t := Tools{path: map[string]string{}}
	for _, kit := range kits {
		for _, g := range kit.groups() {
			dir, err := builder{toolGroup: g, source: source, cache: filepath.Join(cache, "tools"), log: log}.build(ctx)
			if err != nil {
				return Tools{}, fmt.Errorf("build %s: %w", g.title, err)
			}
			t.dirs = append(t.dirs, dir)
			for _, p := range g.programs {
				t.path[p] = filepath.Join(dir, p)
			}
		}
	}
	return t, nil
}
