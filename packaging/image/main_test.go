package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The archive holds the binary and nothing else, runs it, and has the same bytes each time.
func TestImage_HasTheBinary(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir, content := t.TempDir(), []byte("a static binary")
	binary := filepath.Join(dir, "devmgrd")
	if err := os.WriteFile(binary, content, 0o755); err != nil {
		t.Fatal(err)
	}
	var archives [2][]byte
	for i := range archives {
		file := filepath.Join(dir, "image.tar")
		if err := run([]string{"-name", "registry.example/devmgrd:v1", "-arch", "arm64", "-o", file, binary}); err != nil {
			t.Fatal(err)
		}
		archives[i], _ = os.ReadFile(file)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two runs have made different archives")
	}
	tag, err := name.NewTag("registry.example/devmgrd:v1")
	if err != nil {
		t.Fatal(err)
	}
	image, err := tarball.ImageFromPath(filepath.Join(dir, "image.tar"), &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/devmgrd"}) || config.Created.Unix() != 1700000000 {
		t.Errorf("it is of %+v", config)
	}
	found := map[string]string{}
	files := mutate.Extract(image)
	defer files.Close()
	for r := tar.NewReader(files); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r)
		found[h.Name] = string(text)
	}
	if len(found) != 3 || found["usr/bin/devmgrd"] != string(content) {
		t.Errorf("it holds %q", found)
	}
}

func TestImage_BadInputNamesIt(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	for _, args := range [][]string{{}, {"-name", "no tag", "-o", "x", "y"}, {"-name", "registry.example/devmgrd:v1", "-o", "x", "/nonexistent"}} {
		if err := run(args); err == nil {
			t.Errorf("%q makes an image", args)
		}
	}
}
