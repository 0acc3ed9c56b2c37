// Package report is what a probe container says about itself: the JSON document that `probe report` prints and
// tests read from the pod's log.
package report

// Report is everything about a container that a device plugin or a runtime hook may have changed.
type Report struct {
	Args    []string          `json:"args"`
	Env     map[string]string `json:"env"`
	Environ []string          `json:"environ"` // Env as the process was given it: in order, with what is there twice
	Devices []Device          `json:"devices"`
	Mounts  []Mount           `json:"mounts"`
	Files   []File            `json:"files"`
	// Opened is what came of opening the files that the probe was told to open.
	Opened []Opened `json:"opened,omitempty"`
	// Allowed holds the lines of the container's devices.list ("c 1:3 rwm"). It is empty where cgroup v2 decides
	// by a BPF program, which cannot be read back.
	Allowed []string `json:"allowed,omitempty"`
}

// Device is one device node below /dev.
type Device struct {
	Path  string `json:"path"`
	Type  string `json:"type"` // "c" or "b"
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Mode  uint32 `json:"mode"` // permission bits only
	UID   uint32 `json:"uid"`
	GID   uint32 `json:"gid"`
}

// File is a file of the container's root file system, or below /dev.
type File struct {
	Path   string `json:"path"`
	Mode   uint32 `json:"mode"` // with the bits of the file's type
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Number string `json:"number,omitempty"` // of a device: "1:3"
	Link   string `json:"link,omitempty"`   // of a symbolic link: where it leads
}

// Opened is one attempt to open a file.
type Opened struct {
	Path  string `json:"path"`
	How   string `json:"how"`             // "r", "w" or "rw"
	Error string `json:"error,omitempty"` // empty: it was opened
}

// Mount is one line of /proc/self/mountinfo.
type Mount struct {
	Point   string   `json:"point"`
	Root    string   `json:"root"` // what of the file system is mounted: the host path of a bind mount, relative to its file system
	FSType  string   `json:"fsType"`
	Source  string   `json:"source"`
	Options []string `json:"options"`
	Peers   []string `json:"peers,omitempty"` // the optional fields: "shared:1", "master:2"; none: private
}

// Device finds a device node by its path.
func (r Report) Device(path string) (Device, bool) {
	for _, d := range r.Devices {
		if d.Path == path {
			return d, true
		}
	}
	return Device{}, false
}

// Mount finds the topmost mount at a path.
func (r Report) Mount(point string) (Mount, bool) {
	for i := len(r.Mounts) - 1; i >= 0; i-- {
		if r.Mounts[i].Point == point {
			return r.Mounts[i], true
		}
	}
	return Mount{}, false
}
