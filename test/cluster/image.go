package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// The images that every cluster has. Pods use them without pulling: their policy must not be Always, which it is
// for the tag "latest" only.
const (
	// PauseImage holds a pod's namespaces. The name is containerd's default.
	PauseImage = "registry.k8s.io/pause:3.10.2"
	// ProbeImage runs `probe`, see images/probe. Its path in the image is /probe.
	ProbeImage = "localhost/probe:1"
	// SampleDevicePluginImage is Kubernetes' own example of a device plugin, under the name that its manifests use since 1.37.
	SampleDevicePluginImage = sampleDevicePlugin + "1.8.0"
	sampleDevicePlugin      = "registry.k8s.io/e2e-test-images/sample-device-plugin:"
)

// BuiltinImages are the images that every node has.
func BuiltinImages(t Tools) []Image {
	return []Image{
		{Name: PauseImage, Entrypoint: []string{"/pause"}, Files: map[string]string{"/pause": t.Path("pause")}},
		{Name: ProbeImage, Entrypoint: []string{"/probe"}, Files: map[string]string{"/probe": t.Path("probe")}},
		{
			Name: SampleDevicePluginImage, Also: sampleDevicePlugin + "1.7", // of the manifests before 1.37
			Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"},
			Files:      map[string]string{"/sampledeviceplugin": t.Path("sample-device-plugin")},
		},
	}
}

// An Image is a container image of one layer, made of static programs. It has a /tmp.
type Image struct {
	Name       string // with a tag: "localhost/thing:1"
	Also       string // another name; empty: none
	Entrypoint []string
	Env        []string          // "NAME=value"
	Files      map[string]string // path in the image → file on this machine; all become executable
	Bytes      map[string][]byte // path in the image → content
	Links      map[string]string // path in the image → target of a symbolic link
}

// names are all that it has.
func (i Image) names() []string {
	return slices.DeleteFunc([]string{i.Name, i.Also}, func(name string) bool { return name == "" })
}

// Archive is the image in the OCI image layout, as one tar.
func (i Image) Archive() ([]byte, error) {
	manifest, blobs, err := i.content()
	if err != nil {
		return nil, err
	}
	var entries []any
	for _, name := range i.names() {
		entry := manifest.object()
		entry["annotations"] = map[string]string{"io.containerd.image.name": name}
		entries = append(entries, entry)
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": entries})
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"index.json": index, "oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	for _, b := range blobs {
		files["blobs/sha256/"+strings.TrimPrefix(b.digest, "sha256:")] = b.bytes
	}

	archive := bufferFor(files)
	w := tar.NewWriter(archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := addFile(w, name, 0o644, files[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}

// A blob is a part of an image.
type blob struct {
	mediaType, digest string
	bytes             []byte
}

// object describes the blob to others.
func (b blob) object() map[string]any {
	return map[string]any{"mediaType": b.mediaType, "digest": b.digest, "size": len(b.bytes)}
}

// content returns the image's manifest, and all blobs: layer, configuration and manifest.
func (i Image) content() (manifest blob, all []blob, err error) {
	add := func(kind string, content []byte) blob {
		b := blob{"application/vnd.oci.image." + kind, fmt.Sprintf("sha256:%x", sha256.Sum256(content)), content}
		all = append(all, b)
		return b
	}
	tar, err := i.layer()
	if err != nil {
		return blob{}, nil, err
	}
	layer := add("layer.v1.tar", tar)
	encoded, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Env": i.Env},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layer.digest}},
	})
	if err != nil {
		return blob{}, nil, err
	}
	config := add("config.v1+json", encoded)
	encoded, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config.object(), "layers": []any{layer.object()},
	})
	if err != nil {
		return blob{}, nil, err
	}
	return add("manifest.v1+json", encoded), all, nil
}

// layer is the image's file system as a tar.
func (i Image) layer() ([]byte, error) {
	files := maps.Clone(i.Bytes)
	if files == nil {
		files = map[string][]byte{}
	}
	for name, source := range i.Files {
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		files[name] = content
	}

	b := bufferFor(files)
	w := tar.NewWriter(b)
	made := map[string]bool{".": true}
	if err := addDirs(w, made, "tmp", 0o1777); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		inImage := strings.TrimPrefix(path.Clean(name), "/")
		if err := addDirs(w, made, path.Dir(inImage), 0o755); err != nil {
			return nil, err
		}
		if err := addFile(w, inImage, 0o755, files[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Links)) {
		inImage := strings.TrimPrefix(path.Clean(name), "/")
		if err := addDirs(w, made, path.Dir(inImage), 0o755); err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: inImage, Linkname: i.Links[name], Mode: 0o777}); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// addDirs adds a folder and those above it that are not there yet.
func addDirs(w *tar.Writer, made map[string]bool, dir string, mode int64) error {
	if made[dir] {
		return nil
	}
	if err := addDirs(w, made, path.Dir(dir), 0o755); err != nil {
		return err
	}
	made[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode})
}

// bufferFor has room for a tar of these files: it need not grow, which copies all.
func bufferFor(files map[string][]byte) *bytes.Buffer {
	size := 0
	for _, content := range files {
		size += len(content) + 2048
	}
	return bytes.NewBuffer(make([]byte, 0, size+4096))
}

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(content))
	return err
}
