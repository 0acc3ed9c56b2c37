// Command image writes devmgrd's container image for one or several architectures as an OCI archive, which ctr image import,
// podman load and skopeo copy oci-archive: read. It needs no daemon. The image has the static binary and nothing
// else, as packaging/kubernetes/Dockerfile makes it where Docker is at hand. The same binaries and time make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const path = "/usr/bin/devmgrd" // of the binary in the image

const usage = "usage: image -name NAME:TAG -o FILE ARCH=BINARY..."

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	ref := flags.String("name", "", "the image's `name` with its tag, as in registry.example/devmgrd:v1.2.3")
	to := flags.String("o", "", "the `file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() == 0 || *ref == "" || *to == "" {
		return errors.New(usage)
	}
	tag, err := name.NewTag(*ref, name.StrictValidation)
	if err != nil {
		return err
	}
	created, err := sourceTime()
	if err != nil {
		return err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arg := range flags.Args() {
		arch, file, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=BINARY; %s", arg, usage)
		}
		binary, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		image, err := build(binary, arch, created)
		if err != nil {
			return fmt.Errorf("making the image for %s: %w", arch, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	if err := write(*to, tag, index, created); err != nil {
		return fmt.Errorf("writing %s: %w", *to, err)
	}
	return nil
}

// sourceTime returns the time of SOURCE_DATE_EPOCH, in seconds since 1970: that of the commit from which the binaries were built.
func sourceTime() (time.Time, error) {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH has to be set: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// build returns the image of a binary.
func build(binary []byte, arch string, created time.Time) (v1.Image, error) {
	var files bytes.Buffer
	w := tar.NewWriter(&files)
	for _, dir := range []string{"usr/", "usr/bin/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: created}); err != nil {
			return nil, err
		}
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path[1:], Mode: 0o755, Size: int64(len(binary)), ModTime: created}); err != nil {
		return nil, err
	}
	if _, err := w.Write(binary); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: created}
	file.Config.Entrypoint = []string{path}
	file.Config.Labels = map[string]string{
		"org.opencontainers.image.source":   "https://github.com/devmgrd/devmgrd",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return mutate.ConfigFile(image, file)
}

// write writes the image layout of an index as an archive. containerd takes the name of the image from an annotation of its own,
// other readers take the tag from the standard one.
func write(to string, tag name.Tag, index v1.ImageIndex, created time.Time) (err error) {
	dir, err := os.MkdirTemp("", "devmgrd-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	files, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := files.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": tag.TagStr(),
		"io.containerd.image.name":          tag.Name(),
	})); err != nil {
		return err
	}
	file, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return archive(file, os.DirFS(dir), created)
}

// archive writes files as a tar archive, in the order of their names.
func archive(to io.Writer, files fs.FS, created time.Time) error {
	w := tar.NewWriter(to)
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if entry.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: created})
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: created}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}
