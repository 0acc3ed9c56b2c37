package node

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// What Build finds out outside the namespaces is passed to the program inside in these variables.
const (
	binaryVariable   = "TESTNODE_BINARY"
	manifestVariable = "TESTNODE_SAMPLE_MANIFEST"
)

// Build builds devmgrd from this checkout and finds the manifest of Kubernetes' sample device plugin in the sources that
// the plugin is built from. It is for cluster.Main, which runs it where the network and the Go caches are.
func Build(ctx context.Context) error {
	root, err := goList(ctx, ".", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	binary := filepath.Join(root, "bin", "devmgrd")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/devmgrd")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("building devmgrd: %w", err)
	}
	kubernetes, err := goList(ctx, filepath.Join(root, "test", "tools", "k8s"), "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	if kubernetes == "" { // the programs came from the cache, and nothing else has needed the sources
		download := exec.CommandContext(ctx, "go", "mod", "download", "k8s.io/kubernetes")
		download.Dir, download.Stderr = filepath.Join(root, "test", "tools", "k8s"), os.Stderr
		if err := download.Run(); err != nil {
			return fmt.Errorf("downloading the sources of Kubernetes: %w", err)
		}
		if kubernetes, err = goList(ctx, download.Dir, "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"); err != nil {
			return err
		}
	}
	manifest := filepath.Join(kubernetes, "test/e2e/testing-manifests/sample-device-plugin/sample-device-plugin.yaml")
	for name, value := range map[string]string{binaryVariable: binary, manifestVariable: manifest} {
		if _, err := os.Stat(value); err != nil {
			return err
		}
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
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
