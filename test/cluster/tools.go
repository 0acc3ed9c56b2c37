package cluster

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Tools knows where the built programs are.
type Tools struct {
	dirs []string
	path map[string]string
}

// Path is the file of a program, for instance of "kubelet". It panics for a name that [Build] does not build.
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

// Build makes the programs that are not in the cache yet and says in log what it makes. That needs the network and
// takes minutes the first time; when all are there it takes milliseconds and needs nothing. Builds that run at the
// same time wait for one another.
func Build(ctx context.Context, log io.Writer) (Tools, error) {
	cache, err := CacheDir()
	if err != nil {
		return Tools{}, err
	}
	source, err := sourceDir()
	if err != nil {
		return Tools{}, err
	}
	groups := toolGroups()
	dirs := make([]string, len(groups))
	work, ctx := errgroup.WithContext(ctx)
	for i, g := range groups {
		work.Go(func() error {
			b := builder{toolGroup: g, source: source, cache: filepath.Join(cache, "tools"), log: log}
			dir, err := b.build(ctx)
			if err != nil {
				return fmt.Errorf("build %s: %w", g.title, err)
			}
			dirs[i] = dir
			return nil
		})
	}
	if err := work.Wait(); err != nil {
		return Tools{}, err
	}

	t := Tools{dirs: dirs, path: map[string]string{}}
	for i, g := range groups {
		for _, p := range g.programs {
			t.path[p] = filepath.Join(dirs[i], p)
		}
	}
	return t, nil
}

// BuildNodeSuite makes Kubernetes' node end-to-end suite, unless it is in the cache, and returns the path of the program. It
// works like [Build].
func BuildNodeSuite(ctx context.Context, log io.Writer) (string, error) {
	return buildOne(ctx, log, nodeSuite())
}

// BuildHelm does the same with Helm.
func BuildHelm(ctx context.Context, log io.Writer) (string, error) { return buildOne(ctx, log, helm()) }

// BuildNICDriver does the same with a DRA driver of our own for tests.
func BuildNICDriver(ctx context.Context, log io.Writer) (string, error) {
	return buildOne(ctx, log, nicDriver())
}

// BuildKubectl does the same with kubectl.
func BuildKubectl(ctx context.Context, log io.Writer) (string, error) {
	return buildOne(ctx, log, kubectl())
}

// buildOne builds a group of one program and returns its path.
func buildOne(ctx context.Context, log io.Writer, g toolGroup) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	source, err := sourceDir()
	if err != nil {
		return "", err
	}
	dir, err := builder{toolGroup: g, source: source, cache: filepath.Join(cache, "tools"), log: log}.build(ctx)
	if err != nil {
		return "", fmt.Errorf("build %s: %w", g.title, err)
	}
	return filepath.Join(dir, g.programs[0]), nil
}
