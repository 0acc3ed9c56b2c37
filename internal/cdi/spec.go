package cdi

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Edits are what a container gets by a CDI device.
type Edits = specs.ContainerEdits

// A Grant is what a container gets by one request.
type Grant struct {
	Edits Edits
	Names []string // the CDI devices that the device plugin names, which the answer to the kubelet names as well
	// Numbers are those of the device nodes by their paths in the container, as of now. A file does not have them.
	Numbers map[string]Number
}

// A Number is the kernel's identity of a device node: major and minor.
type Number [2]int64

// Equal reports whether two grants are the same, whatever numbers their device nodes have now.
func (g Grant) Equal(h Grant) bool {
	return reflect.DeepEqual(g.Edits, h.Edits) && slices.Equal(g.Names, h.Names)
}

// A Hook is whether devmgrd's hook sees the containers that the runtime creates.
type Hook int

const (
	Away    Hook = iota // it does not
	Hidden              // it does. The runtime does not see devmgrd's process, which has PIDs of its own
	Visible             // it does, and the runtime sees the process under its PID
)

// Metadata are what the containers of a request read of its devices (KEP-5304). They stay as they are while the request has a file.
type Metadata struct {
	Path string // in the container; empty: there are none
	Text []byte
}

// A File is what the file of a request says. It does not change.
type File struct {
	Request  device.ClaimRequest
	Metadata Metadata
	Guard    bool  // it has a guard in place of Grant.Edits
	Grant    Grant // of the time when the kubelet was answered: with a guard, Names are those that the kubelet was told
	names    []string
	devices  map[device.ResourceName][]device.ID
}

// Annotations of a file. They are for devmgrd, and no container gets them.
const (
	bootKey     = "devmgrd.io/boot"
	guardKey    = "devmgrd.io/guard"
	metadataKey = "devmgrd.io/metadata"       // Metadata.Path
	namesKey    = "devmgrd.io/plugin-devices" // CDI devices of the plugin, an array
	devicesKey  = "devmgrd.io/devices"        // an object of IDs by resource
)

// spec returns the file's content, as of this boot and this process of devmgrd. dir is where the file with the metadata is. The edits are those of the file as a whole: the runtime applies them once,
// however many of its devices a container has. Each device has to have edits of its own, so it has /dev/null, which every container has.
//
// A device of a guard has a /dev/null that the runtime finds while the hook sees containers: that of devmgrd's own process. Otherwise the runtime creates no
// container. The kubelet tries again then, while it may give a pod up whose container was created and does not start. The runtime remembers what it has
// found, until the file is written again: so that follows each use (Used). What remains is a devmgrd that hangs, or one that is killed and whose process
// the runtime does not see: then the container is created, and does not start, since the mount's source does not exist.
func (f *File) spec(dir, boot string, hook Hook) (*specs.Spec, error) {
	devices, err := ascii(f.devices)
	if err != nil {
		return nil, err
	}
	s := &specs.Spec{Kind: Kind, Annotations: map[string]string{bootKey: boot, devicesKey: devices}, ContainerEdits: f.Grant.Edits}
	null := &specs.DeviceNode{Path: "/dev/null", Type: "c", Major: 1, Minor: 3, Permissions: "rw"}
	if f.Guard {
		s.Annotations[guardKey] = "true"
		s.ContainerEdits = Edits{Mounts: []*specs.Mount{{HostPath: guardSource, ContainerPath: GuardPath(f.Request), Options: []string{"rbind", "ro"}, Type: "bind"}}}
		switch hook {
		case Away:
			null = &specs.DeviceNode{Path: "/dev/null", HostPath: guardSource, Permissions: "rw"}
		case Visible:
			null = &specs.DeviceNode{Path: "/dev/null", HostPath: fmt.Sprintf("/proc/%d/root/dev/null", os.Getpid()), Permissions: "rw"}
		}
	}
	mode, root := fs.FileMode(0o666), uint32(0)
	if at := f.Metadata.Path; at != "" {
		s.Annotations[metadataKey] = at
		mount := &specs.Mount{HostPath: filepath.Join(dir, metadataName(f.Request)), ContainerPath: at, Options: []string{"bind", "ro"}, Type: "bind"}
		s.ContainerEdits.Mounts = append(slices.Clone(s.ContainerEdits.Mounts), mount) // last
	}
	null.FileMode, null.UID, null.GID = &mode, &root, &root
	if len(f.Grant.Names) > 0 {
		s.Annotations[namesKey], err = ascii(f.Grant.Names)
		if err != nil {
			return nil, err
		}
	}
	for _, name := range f.names {
		s.Devices = append(s.Devices, specs.Device{Name: deviceName(f.Request, name), ContainerEdits: Edits{DeviceNodes: []*specs.DeviceNode{null}}})
	}
	s.Version, err = specs.MinimumRequiredVersion(s)
	return s, err
}

// ascii returns a value as quoted JSON: YAML has no control characters.
func ascii(v any) (string, error) {
	text, err := json.Marshal(v)
	return strconv.QuoteToASCII(string(text)), err
}

func fromASCII(text string, to any) error {
	plain, err := strconv.Unquote(text)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(plain), to)
}

// fileOf reads a file's content, but for the text of the metadata. It fails if the content is of another boot, or not of this package.
func fileOf(of device.ClaimRequest, s *specs.Spec, boot string) (*File, error) {
	f := &File{Request: of, Guard: s.Annotations[guardKey] != ""}
	if s.Kind != Kind || s.Annotations[bootKey] != boot {
		return nil, fmt.Errorf("it is of kind %q and of boot %q", s.Kind, s.Annotations[bootKey])
	}
	if err := fromASCII(s.Annotations[devicesKey], &f.devices); err != nil {
		return nil, fmt.Errorf("its devices: %w", err)
	}
	if names := s.Annotations[namesKey]; names != "" {
		if err := fromASCII(names, &f.Grant.Names); err != nil {
			return nil, fmt.Errorf("the plugin's devices: %w", err)
		}
	}
	if !f.Guard {
		f.Grant.Edits = s.ContainerEdits
	}
	f.Metadata.Path = s.Annotations[metadataKey]
	if mounts := f.Grant.Edits.Mounts; f.Metadata.Path != "" && len(mounts) > 0 {
		f.Grant.Edits.Mounts = slices.Delete(slices.Clone(mounts), len(mounts)-1, len(mounts)) // see spec
	}
	for _, d := range s.Devices {
		request, ours := Request(Kind + "=" + d.Name)
		if !ours || request != of {
			return nil, fmt.Errorf("its device %q is of another request", d.Name)
		}
		f.names = append(f.names, strings.SplitN(d.Name, separator, 3)[2])
	}
	return f, nil
}
