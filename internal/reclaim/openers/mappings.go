package openers

import (
	"bytes"
	"hash/maphash"

	"golang.org/x/sys/unix"
)

const (
	maxPasses = 10   // over a process's mappings, while they change
	maxLooked = 4096 // hashes to keep room for, from one process to the next
)

// mappings looks at the files that a process has mapped, through its directory in proc or that of one of its threads. It is false if
// that has no memory.
func (w *worker) mappings(dir int) (mapped bool, err error) {
	for _, m := range []*map[uint64]struct{}{&w.looked, &w.missed, &w.again} {
		if len(*m) > maxLooked {
			*m = map[uint64]struct{}{}
		}
		clear(*m)
	}
	for pass := range maxPasses {
		if mapped, err = w.passMappings(dir, pass > 0); err != nil || !mapped || len(w.missed) == 0 {
			return mapped, err
		}
		w.again, w.missed = w.missed, w.again
		clear(w.missed)
	}
	return true, &unseenError{reason: "keeps changing its memory"}
}

// passMappings looks at each mapped file once: most are mapped several times, in parts. In later passes it looks only at files whose
// mapping had moved before the worker came to it.
func (w *worker) passMappings(dir int, later bool) (mapped bool, err error) {
	fd, err := openAt(dir, name("maps\x00"), unix.O_RDONLY)
	switch {
	case err == unix.ESRCH:
		return false, nil // no memory, since Linux 6.16; before, an empty file
	case err != nil:
		return false, w.unread("maps", err)
	}
	defer unix.Close(fd)
	kept := 0     // bytes at the beginning of the text, of a line whose end has not been read
	long := false // the line at the beginning of the text continues one that did not fit
	for {
		n, err := unix.Read(fd, w.text[kept:])
		if err == unix.EINTR {
			continue
		}
		if err == unix.ESRCH || n == 0 && err == nil {
			return mapped, nil
		}
		if err != nil {
			return mapped, w.unread("maps", err)
		}
		mapped = true
		w.steps.Add(1)
		rest := w.text[:kept+n]
		for {
			end := bytes.IndexByte(rest, '\n')
			if end < 0 && len(rest) < len(w.text) {
				break
			}
			line := rest
			if end >= 0 {
				line = rest[:end]
			}
			w.lines++
			if w.lines%lines == 0 {
				if err := w.spend(); err != nil {
					return true, err
				}
			}
			if !long {
				if err := w.mapping(dir, line, later); err != nil {
					return true, err
				}
			}
			if long = end < 0; long {
				rest = nil
				break
			}
			rest = rest[end+1:]
		}
		kept = copy(w.text, rest)
	}
}

// mapping looks at the file of one line of maps.
func (w *worker) mapping(dir int, line []byte, later bool) error {
	addresses, identity, ok := parseMapping(line)
	if !ok {
		return nil
	}
	key := maphash.Bytes(w.seed, identity)
	if _, is := w.looked[key]; is {
		return nil
	}
	if _, is := w.again[key]; later && !is {
		return nil
	}
	err := w.file(dir, w.mapFile(addresses), Mapped)
	if gone(err) {
		w.missed[key] = struct{}{}
		return nil
	}
	w.looked[key] = struct{}{}
	delete(w.missed, key)
	return err
}

// mapFile returns the name of a mapping's file below a process's directory. Unlike maps, map_files has no leading zeros.
func (w *worker) mapFile(addresses []byte) name {
	from, to, _ := bytes.Cut(addresses, []byte("-"))
	w.path = append(w.path[:0], "map_files/"...)
	w.path = append(append(w.path, significant(from)...), '-')
	w.path = append(append(w.path, significant(to)...), 0)
	return w.path
}

func significant(digits []byte) []byte {
	for len(digits) > 1 && digits[0] == '0' {
		digits = digits[1:]
	}
	return digits
}

// parseMapping returns the addresses of a line of maps, and the identity of its file: device, inode and path. It is false for memory
// without a file.
func parseMapping(line []byte) (addresses, identity []byte, ok bool) {
	addresses, rest, _ := bytes.Cut(line, []byte(" "))
	_, rest, _ = bytes.Cut(rest, []byte(" "))      // permissions
	_, identity, _ = bytes.Cut(rest, []byte(" "))  // offset
	_, rest, ok = bytes.Cut(identity, []byte(" ")) // device
	inode, path, _ := bytes.Cut(rest, []byte(" ")) // some file systems have an inode 0
	path = bytes.TrimLeft(path, " ")
	return addresses, identity, ok && (string(inode) != "0" || len(path) > 0 && path[0] == '/')
}
