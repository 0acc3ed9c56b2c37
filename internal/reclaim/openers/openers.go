package openers

import "time"

const (
	// MaxDevices is the number of devices that a scan takes.
	MaxDevices    = 1024
	maxOpeners    = 16   // of one device, with their details
	maxAllOpeners = 1024 // of all devices of a request, with their details
	maxUnknown    = 64   // processes outside of pods whose devices are unknown

	// maxFiles is each pod's share of a scan, and that of each process outside of pods. Honest ones have up to a few
	// thousand. A scan of 110 pods that use up theirs takes some 20 s.
	maxFiles = 20_000
)

// A Device is the kernel's identity of a device, which may have several nodes, under any names.
type Device struct {
	Block bool   `json:"block,omitempty"` // a block device; otherwise a character device
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
}

// A File is the identity of a file, as stat(2) returns it to a process on the host. The zero value: unknown.
type File struct {
	Device uint64 `json:"device"` // st_dev
	Inode  uint64 `json:"inode"`  // st_ino
}

// A Process is a process with the names that help an operator to find it.
type Process struct {
	PID     int    `json:"pid"`            // in the PID namespace of the /proc that was scanned
	Started uint64 `json:"started"`        // in clock ticks since the boot. It tells a process from an earlier one with its PID
	Command string `json:"command"`        // its short name, which the process chooses itself: any bytes
	ExeFile File   `json:"exeFile"`        // the executable. A process with a user namespace may change it to another executable file
	Cgroup  string `json:"cgroup"`         // where the container runtime has put the process: a path from the root of a hierarchy
	Root    bool   `json:"root,omitempty"` // its effective user is root of the machine's first user namespace
}

// A How is the way in which a process holds a device.
type How string

const (
	Open   How = "open"   // by a descriptor, and perhaps by mapped memory too
	Mapped How = "mapped" // by mapped memory only
)

// An Opener is a process that holds a device.
type Opener struct {
	Device Device `json:"device"`
	Process
	How How `json:"how"`
}

// An Unknown is a process that may hold any device: the scan could not see all of its descriptors and memory. One process stands for
// all of its pod: the scan does not look for others there.
type Unknown struct {
	Process
	Reason string `json:"reason"` // such as "is exiting"
}

// A Scan is what has been found. A device is not held if it is in no Opener, and there is no Unknown.
type Scan struct {
	Openers   []Opener      `json:"openers,omitempty"`   // at most 16 of a device, and 1024 in all. Each device that is held has one at least
	More      []Device      `json:"more,omitempty"`      // devices with further openers
	Unknown   []Unknown     `json:"unknown,omitempty"`   // at most one of each pod, and 64 outside of pods
	Namespace string        `json:"namespace,omitempty"` // of PIDs, such as a container's, as the scanning process's /proc names it: processes outside are not seen. Empty: the machine's first one
	Processes int           `json:"processes"`           // that were looked at
	Files     int           `json:"files"`               // descriptors and mapped files that were looked at
	Over      int           `json:"over,omitempty"`      // of these, those of pods and processes that have used up their share
	CPU       time.Duration `json:"cpu"`                 // user and system time, also of a scan that fails
}
