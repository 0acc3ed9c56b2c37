//go:build e2e

package debian

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// architectures are those of a release.
var architectures = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// The files of a release are those that its checksums and its provenance name, each with that digest; its image holds its binaries.
func (u *user) release() {
	dir := os.Getenv(releaseVariable)
	v := older
	debian := strings.ReplaceAll(v, "-", "~")
	want := []string{
		"devmgrd-" + debian + "-1.aarch64.rpm", "devmgrd-" + debian + "-1.x86_64.rpm", "devmgrd_" + debian + "_amd64.deb", "devmgrd_" + debian + "_arm64.deb",
		"devmgrd-" + v + "-linux-amd64", "devmgrd-" + v + "-linux-amd64.cdx.json", "devmgrd-" + v + "-linux-arm64", "devmgrd-" + v + "-linux-arm64.cdx.json",
		"devmgrd-" + v + ".image.tar", "devmgrd-" + v + ".tgz",
	}
	slices.Sort(want)
	sums, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	u.must(err)
	files, err := filepath.Glob(filepath.Join(dir, "devmgrd*"))
	u.must(err)
	now := strings.ReplaceAll(u.types(append([]string{"sha256sum"}, files...)...), dir+"/", "")
	if string(sums) != now {
		u.t.Errorf("SHA256SUMS is\n%s\nand the files are\n%s", sums, now)
	}
	digests := map[string]string{}
	for line := range strings.Lines(now) {
		digest, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		digests[name] = digest
	}

	statement := "devmgrd-" + v + ".intoto.json"
	var provenance struct {
		Subject []struct {
			Name   string
			Digest struct{ SHA256 string }
		}
		Predicate struct {
			BuildDefinition struct{ ExternalParameters struct{ Tag string } }
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, statement))
	u.must(err)
	u.must(json.Unmarshal(text, &provenance))
	subjects := map[string]string{}
	for _, s := range provenance.Subject {
		subjects[s.Name] = s.Digest.SHA256
	}
	delete(digests, statement)
	if tag := provenance.Predicate.BuildDefinition.ExternalParameters.Tag; tag != "v"+v || !maps.Equal(subjects, digests) {
		u.t.Errorf("the provenance is that of %s with\n%v\nand the files are\n%v", tag, subjects, digests)
	}
	if got := slices.Sorted(maps.Keys(digests)); !slices.Equal(got, want) {
		u.t.Errorf("the release has\n%q\nwant\n%q", got, want)
	}
	notes, err := os.ReadFile(filepath.Join(dir, "notes.md"))
	if err != nil || len(bytes.TrimSpace(notes)) == 0 {
		u.t.Errorf("the notes are %q, %v", notes, err)
	}

	binaries := u.binaries(filepath.Join(dir, "devmgrd-"+v+".image.tar"))
	if got := slices.Sorted(maps.Keys(binaries)); !slices.Equal(got, slices.Sorted(maps.Keys(architectures))) {
		u.t.Errorf("the image is for %q", got)
	}
	for arch, machine := range architectures {
		text, err := os.ReadFile(filepath.Join(dir, "devmgrd-"+v+"-linux-"+arch))
		u.must(err)
		binary, err := elf.NewFile(bytes.NewReader(text))
		u.must(err)
		if binary.Machine != machine || !bytes.Contains(text, []byte("v"+v)) {
			u.t.Errorf("the binary for %s is for %s, or of another version", arch, binary.Machine)
		}
		if !bytes.Equal(binaries[arch], text) {
			u.t.Errorf("the image for %s has another binary", arch)
		}
	}
	u.reads(u.types("tar", "-xzOf", filepath.Join(dir, "devmgrd-"+v+".tgz"), "devmgrd/Chart.yaml"), "appVersion: "+v, "version: "+v)
}

// binaries returns devmgrd of each architecture of an image.
func (u *user) binaries(archive string) map[string][]byte {
	u.t.Helper()
	file, err := os.ReadFile(archive)
	u.must(err)
	files := u.untar(bytes.NewReader(file))
	type descriptor struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	read := func(path string) (d struct{ Manifests, Layers []descriptor }) {
		u.must(json.Unmarshal(files[path], &d))
		return d
	}
	blob := func(d descriptor) string { return "blobs/" + strings.Replace(d.Digest, ":", "/", 1) }
	found := map[string][]byte{}
	for _, image := range read(blob(read("index.json").Manifests[0])).Manifests {
		for _, layer := range read(blob(image)).Layers {
			unzipped, err := gzip.NewReader(bytes.NewReader(files[blob(layer)]))
			u.must(err)
			found[image.Platform.Architecture] = u.untar(unzipped)["usr/bin/devmgrd"]
		}
	}
	return found
}

// untar returns the files of an archive.
func (u *user) untar(from io.Reader) map[string][]byte {
	u.t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		u.must(err)
		files[h.Name], err = io.ReadAll(r)
		u.must(err)
	}
}

// The image of a release starts in containerd, by the name that the chart has.
func (u *user) image() {
	name := "ghcr.io/devmgrd/devmgrd:v" + older
	ctr := []string{u.Tools.Path("ctr"), "--namespace=release"}
	u.types(append(ctr, "image", "import", filepath.Join(os.Getenv(releaseVariable), "devmgrd-"+older+".image.tar"))...)
	u.reads(u.types(append(ctr, "run", "--rm", name, "devmgrd", "/usr/bin/devmgrd", "version")...), "v"+older, "commit:")
	u.types(append(ctr, "image", "rm", name)...)
}
