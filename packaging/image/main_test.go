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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The archive holds for each architecture its binary and nothing else, runs it, and has the same bytes each time.
func TestImage_HasTheBinaries(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dir := t.TempDir()
	content := map[string]string{"amd64": "a static binary", "arm64": "another one"}
	var archives [2][]byte
	for i := range archives {
		file := filepath.Join(dir, "image.tar")
		args := []string{"-name", "registry.example/devmgrd:v1", "-o", file}
		for _, arch := range []string{"amd64", "arm64"} {
			binary := filepath.Join(dir, arch)
			if err := os.WriteFile(binary, []byte(content[arch]), 0o755); err != nil {
				t.Fatal(err)
			}
			args = append(args, arch+"="+binary)
		}
		if err := run(args); err != nil {
			t.Fatal(err)
		}
		archives[i], _ = os.ReadFile(file)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two runs have made different archives")
	}

	unpacked := filepath.Join(dir, "unpacked")
	for name, text := range unpack(t, bytes.NewReader(archives[0])) {
		file := filepath.Join(unpacked, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := layout.ImageIndexFromPath(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(files); err != nil {
		t.Error(err)
	}
	top, err := files.IndexManifest()
	if err != nil || len(top.Manifests) != 1 {
		t.Fatalf("the archive holds %+v, %v", top, err)
	}
	names := top.Manifests[0].Annotations
	if names["org.opencontainers.image.ref.name"] != "v1" || names["io.containerd.image.name"] != "registry.example/devmgrd:v1" {
		t.Errorf("its names are %v", names)
	}
	index, err := files.ImageIndex(top.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	images, err := index.IndexManifest()
	if err != nil || len(images.Manifests) != len(content) {
		t.Fatalf("the index holds %+v, %v", images, err)
	}
	for _, m := range images.Manifests {
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, m.Platform.Architecture, content[m.Platform.Architecture])
	}
}

func checkImage(t *testing.T, image v1.Image, arch, binary string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != arch || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/devmgrd"}) || config.Created.Unix() != 1700000000 {
		t.Errorf("%s: it is of %+v", arch, config)
	}
	files := mutate.Extract(image)
	defer files.Close()
	if found := unpack(t, files); len(found) != 1 || found["usr/bin/devmgrd"] != binary {
		t.Errorf("%s: it holds %q", arch, found)
	}
}

// unpack returns the regular files of an archive.
func unpack(t *testing.T, from io.Reader) map[string]string {
	t.Helper()
	found := map[string]string{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		found[h.Name] = string(text)
	}
}

func TestImage_BadInputNamesIt(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "")
	for _, args := range [][]string{
		{}, {"-name", "no tag", "-o", "x", "amd64=y"}, {"-name", "registry.example/devmgrd:v1", "-o", "x", "y"},
		{"-name", "registry.example/devmgrd:v1", "-o", "x", "amd64=/nonexistent"},
	} {
		if err := run(args); err == nil {
			t.Errorf("%q makes an image", args)
		}
	}
}
