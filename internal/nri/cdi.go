package nri

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// cdiDirs are the default directories of CDI specifications. A later directory overrides the devices of an earlier one.
var cdiDirs = []string{"/etc/cdi", "/var/run/cdi"}

// Limits of one hook. A specification of eight GPUs has about 100 KiB.
const (
	maxSpecs    = 1024
	maxSpecSize = 4 << 20
)

// edits are the device nodes and mounts that CDI devices add to a container, which can collide with a plugin's plain grants. The
// runtime applies CDI devices before the other entries of an NRI answer, but after the entries of the kubelet's answer, over which
// they win.
type edits struct {
	DeviceNodes []cdiNode  `json:"deviceNodes"`
	Mounts      []cdiMount `json:"mounts"`
}

type cdiMount struct {
	HostPath      string `json:"hostPath"`
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

// A cdiDevice is what a CDI device adds to a container, and the part of it that its specification does not have for all devices.
type cdiDevice struct{ all, own edits }

// cdiDevices returns those of the named CDI devices that the specifications have. It skips unreadable specifications: the runtime fails if a
// device is missing.
func cdiDevices(dirs, names []string) map[string]cdiDevice {
	found := map[string]cdiDevice{}
	for spec := range cdiSpecs(dirs, names) {
		for _, d := range spec.Devices {
			if name := spec.Kind + "=" + d.Name; slices.Contains(names, name) {
				found[name] = cdiDevice{edits{slices.Concat(spec.Edits.DeviceNodes, d.Edits.DeviceNodes), slices.Concat(spec.Edits.Mounts, d.Edits.Mounts)}, d.Edits}
			}
		}
	}
	return found
}

// cdiEdits returns the edits of the named CDI devices.
func cdiEdits(dirs, names []string) edits {
	found := cdiDevices(dirs, names)
	var all edits
	for _, name := range names {
		all.DeviceNodes = append(all.DeviceNodes, found[name].all.DeviceNodes...)
		all.Mounts = append(all.Mounts, found[name].all.Mounts...)
	}
	return all
}

// cdiNames returns the CDI devices of grants.
func cdiNames(shares []device.Share) (names []string) {
	for _, s := range shares {
		names = append(names, s.Grant.CDINames()...)
	}
	return names
}

// cdiLacks returns what the host lacks of the named CDI devices, for people: the runtime says it to the kubelet alone. Empty: nothing is known to be
// missing in these directories, and the runtime may read others.
func cdiLacks(dirs, names []string) string {
	found := cdiDevices(dirs, names)
	for _, name := range names {
		of, known := found[name]
		if !known {
			return fmt.Sprintf("no CDI specification in %s has its device %s", strings.Join(dirs, " or "), name)
		}
		for _, n := range of.all.DeviceNodes {
			if path := cmp.Or(n.HostPath, n.Path); gone(path) {
				return fmt.Sprintf("its CDI device %s has the device node %s, which the host does not have", name, path)
			}
		}
		for _, m := range of.all.Mounts {
			if gone(m.HostPath) {
				return fmt.Sprintf("its CDI device %s mounts %s, which the host does not have", name, m.HostPath)
			}
		}
	}
	return ""
}

// gone reports whether the host has no such file.
func gone(path string) bool {
	_, err := os.Lstat(path)
	return path != "" && errors.Is(err, fs.ErrNotExist)
}

// cdiOwnNodes returns the nodes of the named CDI devices, without those that a specification has for all of its devices. It fails if
// no specification has one of the devices.
func cdiOwnNodes(dirs, names []string) (all []cdiNode, err error) {
	found := cdiDevices(dirs, names)
	for _, name := range names {
		of, known := found[name]
		if !known {
			return nil, fmt.Errorf("no CDI specification has the device %s", name)
		}
		all = append(all, of.own.DeviceNodes...)
	}
	return all, nil
}

// cdiSpecs yields the specifications that may describe one of a plugin's devices, which are in none of the files of claims. A later one overrides the devices of an earlier one.
func cdiSpecs(dirs, names []string) iter.Seq[cdiSpec] {
	return func(yield func(cdiSpec) bool) {
		left := maxSpecs
		for _, dir := range dirs {
			files, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			for _, f := range files {
				if ext := filepath.Ext(f.Name()); f.IsDir() || ext != ".json" && ext != ".yaml" || cdi.IsFile(f.Name()) {
					continue
				}
				left--
				if left < 0 {
					break
				}
				if spec, ok := readSpec(filepath.Join(dir, f.Name()), names); ok && !yield(spec) {
					return
				}
			}
		}
	}
}

// readSpec reads a specification that may describe one of the devices.
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

// has reports whether the edits have a device node at path.
func (e edits) has(path string) bool {
	return slices.ContainsFunc(e.DeviceNodes, func(n cdiNode) bool { return n.Path == path })
}

// covers reports whether the edits have a mount at path.
func (e edits) covers(path string) bool {
	return slices.ContainsFunc(e.Mounts, func(m cdiMount) bool { return filepath.Clean(m.ContainerPath) == filepath.Clean(path) })
}

// rule returns a node's number and permissions. Numbers that the specification leaves out are those of the host's device node.
func (n cdiNode) rule(ctx context.Context, host *hostchecks.Checks) (number, string, bool) {
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
