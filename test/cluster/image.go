package cluster

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
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
	// SampleDevicePluginImage is Kubernetes' own example of a device plugin, under the name that its manifests use.
	SampleDevicePluginImage = "registry.k8s.io/e2e-test-images/sample-device-plugin:1.7"
)

// BuiltinImages are the images that every node has.
func BuiltinImages(t Tools) []Image {
	return []Image{
		{Name: PauseImage, Entrypoint: []string{"/pause"}, Files: map[string]string{"/pause": t.Path("pause")}},
		{Name: ProbeImage, Entrypoint: []string{"/probe"}, Files: map[string]string{"/probe": t.Path("probe")}},
		{
			Name: SampleDevicePluginImage, Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"},
			Files: map[string]string{"/sampledeviceplugin": t.Path("sample-device-plugin")},
		},
	}
}

// An Image is a container image of one layer, made of static programs. It has a /tmp.
type Image struct {
	Name       string // with a tag: "localhost/thing:1"
	Entrypoint []string
	Env        []string          // "NAME=value"
	Files      map[string]string // path in the image → file on this machine; all become executable
	Bytes      map[string][]byte // path in the image → content
	Links      map[string]string // path in the image → target of a symbolic link
}

// LoadImage returns an image to containerd, in the namespace where the kubelet finds it.
func (c *Cluster) LoadImage(ctx context.Context, image Image) error {
	archive, err := image.Archive()
	if err != nil {
		return fmt.Errorf("make the image %s: %w", image.Name, err)
	}
	cmd := exec.CommandContext(ctx, c.tools.Path("ctr"), "--address="+containerdSocket, "--namespace=k8s.io", "image", "import", "-")
	cmd.Stdin = bytes.NewReader(archive)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("load the image %s: %w\n%s\n%s", image.Name, err, output, c.Containerd.tail())
	}
	return nil
}

// Archive is the image in the OCI image layout, as one tar.
func (i Image) Archive() ([]byte, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	type object = map[string]any
	blobs := map[string][]byte{}
	blob := func(kind string, content []byte) object {
		sum := fmt.Sprintf("%x", sha256.Sum256(content))
		blobs["blobs/sha256/"+sum] = content
		return object{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(content)}
	}
	document := func(kind string, content object) (object, error) {
		encoded, err := json.Marshal(content)
		return blob(kind, encoded), err
	}

	layerBlob := blob("layer.v1.tar", layer)
	config, err := document("config.v1+json", object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": i.Entrypoint, "Env": i.Env},
		"rootfs": object{"type": "layers", "diff_ids": []any{layerBlob["digest"]}},
	})
	if err != nil {
		return nil, err
	}
	manifest, err := document("manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{layerBlob},
	})
	if err != nil {
		return nil, err
	}
	manifest["annotations"] = object{"io.containerd.image.name": i.Name}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []any{manifest}})
	if err != nil {
		return nil, err
	}
	blobs["index.json"] = index
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)

	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(blobs)) {
		if err := addFile(w, name, 0o644, blobs[name]); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
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

	var b bytes.Buffer
	w := tar.NewWriter(&b)
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

func addFile(w *tar.Writer, name string, mode int64, content []byte) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.Copy(w, bytes.NewReader(content))
	return err
}
