package dirwatch

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// A change is an event of inotify.
type change struct {
	wd   int32 // the watch descriptor; -1: of none
	mask uint32
	name string // of the file; empty: it is about the directory itself
}

var errCut = errors.New("the kernel's event is incomplete")

// next returns the first change of what the kernel has written, and the rest.
func next(text []byte) (c change, rest []byte, err error) {
	if len(text) < unix.SizeofInotifyEvent {
		return change{}, nil, errCut
	}
	wd, mask, size := binary.NativeEndian.Uint32(text), binary.NativeEndian.Uint32(text[4:]), binary.NativeEndian.Uint32(text[12:]) // after the cookie
	text = text[unix.SizeofInotifyEvent:]
	if uint64(size) > uint64(len(text)) {
		return change{}, nil, errCut
	}
	name, _, _ := bytes.Cut(text[:size], []byte{0}) // NULs follow the name
	return change{wd: int32(wd), mask: mask, name: string(name)}, text[size:], nil
}

// op returns what happened.
func (c change) op() (op Op) {
	for _, one := range []struct {
		bits uint32
		op   Op
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, Create},
		{unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_UNMOUNT, Remove},
		{unix.IN_MOVED_FROM | unix.IN_MOVE_SELF, Rename},
		{unix.IN_MODIFY, Write},
		{unix.IN_ATTRIB, Chmod},
	} {
		if c.mask&one.bits != 0 {
			op |= one.op
		}
	}
	return op
}
