// Package fusetest has a file system that stops answering, for tests of what waits for one.
package fusetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Requests of FUSE, as linux/fuse.h numbers them.
const (
	fuseLookup = 1
	fuseOpen   = 14
	fuseInit   = 26
)

// Mount mounts the file system for a user at a directory, and returns its connection, for Serve. When the connection is closed, everything
// that waits for the file system fails.
func Mount(dir string, user int, flags uintptr) (fd int, err error) {
	if fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if err := unix.Mount("fusetest", dir, "fuse", flags, fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=%d", fd, user, user)); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// Serve answers the requests that the opening of any file needs, until fd is closed. Others wait for ever, those for attributes among them:
// Serve calls hangs for each, and from then on not even SIGKILL ends the wait. A file whose name begins with "changes" is a directory from the
// second look-up on: the kernel then calls the inode of the first one bad.
func Serve(fd int, hangs func()) error {
	buffer, changed := make([]byte, 1<<20), false
	for {
		n, err := unix.Read(fd, buffer)
		if err == unix.EINTR || err == unix.ENOENT {
			continue
		}
		if err != nil {
			return err
		}
		if n < 40 {
			return errors.New("short request")
		}
		var body any
		switch binary.NativeEndian.Uint32(buffer[4:]) {
		case fuseInit:
			body = struct {
				Major, Minor, ReadAhead, Flags uint32
				Background, Congestion         uint16
				MaxWrite, Granularity          uint32
				Rest                           [9]uint32
			}{Major: 7, Minor: 31, MaxWrite: 4096, Granularity: 1}
		case fuseLookup:
			mode := uint32(unix.S_IFREG | 0o644)
			if bytes.HasPrefix(buffer[40:n], []byte("changes")) {
				if changed {
					mode = unix.S_IFDIR | 0o755
				}
				changed = true
			}
			body = struct {
				Node, Generation, EntryValid, AttributesValid uint64
				Nanoseconds                                   [2]uint32
				Inode, Size, Blocks                           uint64
				Times                                         [3]uint64
				TimesNanoseconds                              [3]uint32
				Mode, Links, User, Group, Device, Block, Flag uint32
			}{Node: 2, Inode: 2, Mode: mode, Links: 1}
		case fuseOpen:
			body = [2]uint64{1, 0}
		default:
			hangs()
			continue
		}
		var answer bytes.Buffer
		for _, part := range []any{uint32(16 + binary.Size(body)), int32(0), buffer[8:16], body} {
			if err := binary.Write(&answer, binary.NativeEndian, part); err != nil {
				return err
			}
		}
		if _, err := unix.Write(fd, answer.Bytes()); err != nil {
			return err
		}
	}
}
