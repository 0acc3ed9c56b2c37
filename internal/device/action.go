package device

import "time"

// An Action is a command that an operator gave to devmgrd and that changes something, or copies its files.
type Action struct {
	At       time.Time
	Verb     string // cordon, uncordon, drain, forget or backup
	Operator Operator
	Subject  []string // devices as RESOURCE/ID, a resource, or a file; of many, the first ones
	More     int      // subjects that Subject leaves out
	Reason   string   // the operator's own words
	Err      string   // why devmgrd refused it; empty: it was done
}

// An Operator is the process that gave a command, by what the kernel says of it.
type Operator struct {
	UID   uint32
	Login *uint32 // the user who logged in to begin with (/proc/PID/loginuid); nil: no login, as from a service or a container
	PID   int32   // 0: outside of devmgrd's PID namespace
	Name  string  // of the program
}
