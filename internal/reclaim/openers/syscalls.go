package openers

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A name is a path for a system call: it ends with a NUL byte. The functions below take one where those of package unix copy a string.
type name []byte

// openAt opens a name below a directory.
func openAt(dir int, n name, flags int) (int, error) {
	for {
		fd, _, errno := unix.Syscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(&n[0])), uintptr(flags|unix.O_CLOEXEC), 0, 0, 0)
		if errno != unix.EINTR {
			return int(fd), toError(errno)
		}
	}
}

// statAt follows the last link. It uses what the kernel knows of the file, and does not ask a server, which may hang.
func statAt(dir int, n name, mask int, into *unix.Statx_t) error {
	const flags = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(&n[0])), flags, uintptr(mask), uintptr(unsafe.Pointer(into)), 0)
	return toError(errno)
}

// sameFiles reports whether two threads are known to share a table of descriptors.
func sameFiles(a, b int) bool {
	const kcmpFiles = 2 // KCMP_FILES of linux/kcmp.h
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	return errno == 0 && order == 0
}

// readAt reads a file of proc into a buffer; what does not fit is cut off.
func readAt(dir int, n name, buffer []byte) ([]byte, error) {
	fd, err := openAt(dir, n, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	length := 0
	for length < len(buffer) {
		m, err := unix.Read(fd, buffer[length:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m == 0 {
			break
		}
		length += m
	}
	return buffer[:length], nil
}

// eachEntry calls visit for each name in a directory except "." and "..". The names are valid until visit returns.
func eachEntry(fd int, buffer []byte, visit func(name) error) error {
	const lengthAt, nameAt = 16, 19 // in linux_dirent64
	for {
		n, err := unix.Getdents(fd, buffer)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		if n == 0 {
			return nil
		}
		for rest := buffer[:n]; len(rest) > nameAt; {
			length := int(binary.NativeEndian.Uint16(rest[lengthAt:]))
			entry := rest[nameAt:length]
			rest = rest[length:]
			entry = entry[:bytes.IndexByte(entry, 0)+1]
			if entry[0] == '.' {
				continue
			}
			if err := visit(name(entry)); err != nil {
				return err
			}
		}
	}
}

// number returns a name as a number; 0 if it is none.
func number(n name) int {
	value := 0
	for _, c := range n[:len(n)-1] {
		if c < '0' || c > '9' || value > 1<<30 {
			return 0
		}
		value = value*10 + int(c-'0')
	}
	return value
}

// gone reports whether a process, thread, descriptor or mapping has ended.
func gone(err error) bool { return err == unix.ENOENT || err == unix.ESRCH }

func denied(err error) bool { return err == unix.EACCES || err == unix.EPERM }

// toError returns nil for no error, which a nil Errno in an error is not.
func toError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}
