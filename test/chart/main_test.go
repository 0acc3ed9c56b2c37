//go:build e2e

package chart

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// The name of the container image, and its tag.
const (
	repository = "localhost/devmgrd"
	tag        = "1"
)

// archiveVariable names the file with the container image, which is made outside.
const archiveVariable = "TESTCHART_IMAGE"

func TestMain(m *testing.M) {
	cluster.Main(m.Run, cluster.Needs(cluster.Kubernetes, cluster.Helm), node.Build, buildImage)
}

// source is the root of the checkout: the go command starts tests in their own directory.
func source() (string, error) { return filepath.Abs("../..") }

// buildImage makes the container image for this machine.
func buildImage(ctx context.Context) error {
	root, err := source()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bin", "chart-image")
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "image", "IMAGE="+repository+":"+tag, "IMAGE_ARCH="+runtime.GOARCH, "DIST="+dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make image: %w\n%s", err, out)
	}
	return os.Setenv(archiveVariable, filepath.Join(dir, "devmgrd.image.tar"))
}
