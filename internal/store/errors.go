package store

import "fmt"

// A LockedError reports that another devmgrd has the state file open.
type LockedError struct {
	Path string // the lock file
	PID  int    // of the other devmgrd; 0: not known
}

func (e *LockedError) Error() string {
	who := "another devmgrd"
	if e.PID > 0 {
		who = fmt.Sprintf("another devmgrd (pid %d)", e.PID)
	}
	return fmt.Sprintf("%s is running on this node and holds %s: stop that devmgrd first, or configure another stateDir and runDir", who, e.Path)
}

// A VersionError reports that a newer devmgrd wrote the file.
type VersionError struct {
	Title      string // the kind of file
	Path       string
	Have, Know uint64
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s %s has schema version %d, and this devmgrd supports versions up to %d: a newer devmgrd wrote the file; "+
		"run that version, or restore a backup from before the upgrade; the file has not been touched", e.Title, e.Path, e.Have, e.Know)
}

// A ForeignError reports that a file is sound, but not devmgrd's.
type ForeignError struct {
	Title string // what the file would be
	Path  string
	Err   error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %s belongs to another program: %v; give devmgrd a stateDir of its own, or move the file aside; "+
		"the file has not been touched", e.Title, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *ForeignError) Unwrap() error { return e.Err }

// A DamagedError reports that a file's content is not as written.
type DamagedError struct {
	Title  string // the kind of file
	Path   string
	Err    error
	Remedy string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s %s is damaged and cannot be read: %v; %s; the file has not been touched", e.Title, e.Path, e.Err, e.Remedy)
}

// Unwrap returns the cause.
func (e *DamagedError) Unwrap() error { return e.Err }

// An InUseError reports that another program has a file open.
type InUseError struct {
	Title string // the kind of file
	Path  string
	Err   error
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("%s %s is in use by another program (%v): wait for that program to end, or stop it", e.Title, e.Path, e.Err)
}

// Unwrap returns the cause.
func (e *InUseError) Unwrap() error { return e.Err }

// A StrayError reports that a file was removed or replaced while devmgrd has it open. The open file can still be copied.
type StrayError struct {
	Title   string // the kind of file
	Path    string
	PID, FD int  // the open file is /proc/PID/fd/FD
	Removed bool // the path has no file, as opposed to another one
}

func (e *StrayError) Error() string {
	what, then := "replaced by another file", "starts from the replacement"
	if e.Removed {
		what, then = "removed", "starts from an empty file"
	}
	return fmt.Sprintf("%s %s was %s while in use, so devmgrd cannot save to it: restore the original "+
		"(cp /proc/%d/fd/%d %s) and then restart devmgrd; without the original devmgrd %s", e.Title, e.Path, what, e.PID, e.FD, e.Path, then)
}

// A ChangedError reports that the state file, which was not writable at first, has changed since devmgrd read it.
type ChangedError struct{ Path string }

func (e *ChangedError) Error() string {
	return fmt.Sprintf("state file %s is writable again, but has changed since devmgrd read it: restart devmgrd", e.Path)
}
