package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/test/gobuild"
)

// What Build finds out outside the namespaces is passed to the program inside in these variables.
const (
	binaryVariable   = "TESTNODE_BINARY"
	manifestVariable = "TESTNODE_SAMPLE_MANIFEST"
)

// Build builds devmgrd from this checkout and finds the manifest of Kubernetes' sample device plugin in the sources that
// the plugin is built from. It is for cluster.Main, which runs it where the network and the Go caches are.
func Build(ctx context.Context) error {
	return errors.Join(BuildDevmgrd(ctx), findManifest(ctx))
}

// BuildDevmgrd is Build without the manifest.
func BuildDevmgrd(ctx context.Context) error { return buildDevmgrd(ctx, "devmgrd") }

// BuildRacing is BuildDevmgrd with the race detector.
func BuildRacing(ctx context.Context) error { return buildDevmgrd(ctx, "devmgrd-racing", "-race") }

// buildDevmgrd builds bin/NAME.
func buildDevmgrd(ctx context.Context, name string, flags ...string) error {
	root, err := goList(ctx, ".", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	binary := filepath.Join(root, "bin", name)
	err = gobuild.Run(ctx, os.Stderr, gobuild.Build{
		Title: "devmgrd", Dir: root, Flags: flags, Output: []string{"-o", binary}, Packages: []string{"./cmd/devmgrd"},
	})
	if err != nil {
		return err
	}
	return os.Setenv(binaryVariable, binary)
}

func findManifest(ctx context.Context) error {
	root, err := goList(ctx, ".", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "test", "tools", "k8s")
	kubernetes, err := goList(ctx, dir, "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	if kubernetes == "" { // the programs came from the cache, and nothing else has needed the sources
		download := exec.CommandContext(ctx, "go", "mod", "download", "k8s.io/kubernetes")
		download.Dir, download.Stderr = dir, os.Stderr
		if err := download.Run(); err != nil {
			return fmt.Errorf("downloading the sources of Kubernetes: %w", err)
		}
		if kubernetes, err = goList(ctx, dir, "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"); err != nil {
			return err
		}
	}
	manifest := filepath.Join(kubernetes, "test/e2e/testing-manifests/sample-device-plugin/sample-device-plugin.yaml")
	if _, err := os.Stat(manifest); err != nil {
		return err
	}
	return os.Setenv(manifestVariable, manifest)
}

func goList(ctx context.Context, dir string, args ...string) (string, error) {
	list := exec.CommandContext(ctx, "go", append([]string{"list"}, args...)...)
	list.Dir, list.Stderr = dir, os.Stderr
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("go list %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
