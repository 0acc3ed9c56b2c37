// Command image writes devmgrd's container image as an archive that docker load, ctr image import and crane push read. The image
// has the static binary and nothing else, as packaging/kubernetes/Dockerfile makes it where Docker is at hand. The same
// binary and time make the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const path = "/usr/bin/devmgrd" // of the binary in the image

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	arch := flags.String("arch", "amd64", "the binary's `architecture`, as Go names it")
	ref := flags.String("name", "", "the image's `name` with its tag, as in registry.example/devmgrd:v1.2.3")
	to := flags.String("o", "", "the `file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 || *ref == "" || *to == "" {
		return errors.New("usage: image -name NAME:TAG -o FILE [-arch ARCH] BINARY")
	}
	tag, err := name.NewTag(*ref, name.StrictValidation)
	if err != nil {
		return err
	}
	created, err := sourceTime()
	if err != nil {
		return err
	}
	binary, err := os.ReadFile(flags.Arg(0))
	if err != nil {
		return err
	}
	image, err := build(binary, *arch, created)
	if err != nil {
		return fmt.Errorf("making the image: %w", err)
	}
	if err := tarball.WriteToFile(*to, tag, image); err != nil {
		return fmt.Errorf("writing %s: %w", *to, err)
	}
	return nil
}

// sourceTime returns the time of SOURCE_DATE_EPOCH, in seconds since 1970: that of the commit from which the binary was built.
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
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
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
