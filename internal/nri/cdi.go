package nri

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"
)

// cdiDirs are the directories in which runtimes look for specifications of CDI devices by default. What a later one
// says of a device counts.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

// Bounds of what is read in a hook. A specification of eight GPUs has about 100 KiB.
const (
	maxSpecs    = 1024
	maxSpecSize = 4 << 20
)

// edits are what CDI devices put into a container, as far as it can collide with a plugin's plain grants. The runtime
// applies them before what comes through NRI, and after what comes from the kubelet, where they win.
type edits struct {
	DeviceNodes []cdiNode  `json:"deviceNodes"`
	Mounts      []cdiMount `json:"mounts"`
}

type cdiMount struct {
	ContainerPath string `json:"containerPath"`
}

type cdiNode struct {
	Path        string `json:"path"` // in the container
	HostPath    string `json:"hostPath"`
	Type        string `json:"type"`
	Major       int64  `json:"major"`
	Minor       int64  `json:"minor"`
	Permissions string `json:"permissions"`
}

type cdiSpec struct {
	Kind    string `json:"kind"`
	Devices []struct {
		Name  string `json:"name"`
		Edits edits  `json:"containerEdits"`
	} `json:"devices"`
	Edits edits `json:"containerEdits"` // for each container with any of the devices
}

// cdiEdits finds what the named CDI devices put into a container. What cannot be read is left out: it is for the runtime
// to fail because of a device that it cannot find.
func cdiEdits(dirs, names []string) edits {
	found := map[string]edits{} // by device
	left := maxSpecs
	for _, dir := range dirs {
		files, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, f := range files {
			if ext := filepath.Ext(f.Name()); f.IsDir() || ext != ".json" && ext != ".yaml" {
				continue
			}
			if left--; left < 0 {
				break
			}
			spec, ok := readSpec(filepath.Join(dir, f.Name()), names)
			if !ok {
				continue
			}
			for _, d := range spec.Devices {
				if name := spec.Kind + "=" + d.Name; slices.Contains(names, name) {
					found[name] = edits{slices.Concat(spec.Edits.DeviceNodes, d.Edits.DeviceNodes), slices.Concat(spec.Edits.Mounts, d.Edits.Mounts)}
				}
			}
		}
	}
	var all edits
	for _, name := range names {
		all.DeviceNodes = append(all.DeviceNodes, found[name].DeviceNodes...)
		all.Mounts = append(all.Mounts, found[name].Mounts...)
	}
	return all
}

// readSpec reads a specification if it may be of one of the devices.
func readSpec(path string, names []string) (spec cdiSpec, ok bool) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be no file at all
	if err != nil {
		return spec, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSpecSize+1))
	if err != nil || len(text) > maxSpecSize {
		return spec, false
	}
	mentioned := slices.ContainsFunc(names, func(name string) bool {
		vendor, _, _ := strings.Cut(name, "/")
		return bytes.Contains(text, []byte(vendor))
	})
	return spec, mentioned && yaml.Unmarshal(text, &spec) == nil
}

// has reports whether a device of that path is among the edits.
func (e edits) has(path string) bool {
	return slices.ContainsFunc(e.DeviceNodes, func(n cdiNode) bool { return n.Path == path })
}

// covers reports whether a mount at that place is among the edits.
func (e edits) covers(path string) bool {
	return slices.ContainsFunc(e.Mounts, func(m cdiMount) bool { return filepath.Clean(m.ContainerPath) == filepath.Clean(path) })
}

// rule returns the access that the runtime grants for a node. What is not in the specification is the host's.
func (n cdiNode) rule(ctx context.Context, host *hostChecks) (number, string, bool) {
	permissions := cmp.Or(n.Permissions, "rwm") // it may also be "none"
	if n.Type != "" && n.Major != 0 {
		return number{n.Type, n.Major, n.Minor}, permissions, true
	}
	path := cmp.Or(n.HostPath, n.Path)
	info, err := checkHost(ctx, host, "device of a CDI device", path, func() (os.FileInfo, error) { return os.Lstat(path) })
	if err != nil {
		return number{}, "", false
	}
	found, ok := nodeOf(info)
	return found.number, permissions, ok
}
