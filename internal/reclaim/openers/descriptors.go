package openers

import (
	"strconv"

	"golang.org/x/sys/unix"
)

// descriptors looks at one table of descriptors of the process at hand.
func (w *worker) descriptors(table name) error {
	return w.list(table, "fd", w.entries, func(dir int, n name) error {
		return unlessGone(w.file(dir, n, Open)) // it may have been closed meanwhile
	})
}

// list calls visit for each name in a directory of the process at hand, which errors call so.
func (w *worker) list(directory name, called string, buffer []byte, visit func(dir int, n name) error) error {
	fd, err := openAt(w.dir, directory, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return w.unread(called, err)
	}
	defer unix.Close(fd)
	var failed error
	err = eachEntry(fd, buffer, func(n name) error {
		failed = visit(fd, n)
		return failed
	})
	if failed == nil && err != nil {
		return w.unread(called, err)
	}
	return failed
}

// file looks at a file that the process at hand has open or mapped: at the end of a link in proc.
func (w *worker) file(dir int, link name, how How) error {
	if err := w.spend(); err != nil {
		return err
	}
	var file unix.Statx_t
	err := statAt(dir, link, unix.STATX_TYPE, &file)
	switch {
	case err == unix.ESTALE:
		return nil // on a network file system, whose server has removed it
	case denied(err) && w.foreignFUSE(dir, link):
		return nil
	case err != nil && how == Mapped:
		return w.unread("map_files", err)
	case err != nil:
		return w.unread("fd", err)
	}
	switch file.Mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		d := Device{Block: file.Mode&unix.S_IFMT == unix.S_IFBLK, Major: file.Rdev_major, Minor: file.Rdev_minor}
		if index, asked := w.record.index[d]; asked {
			w.hold(index, how)
		}
	}
	return nil
}

// hold records that the process at hand holds a device.
func (w *worker) hold(device int, how How) {
	for _, h := range w.holds {
		if h.device == device {
			return // open ones are found first
		}
	}
	w.holds = append(w.holds, hold{device, how})
}

// foreignFUSE reports whether a file that does not show its type is on a FUSE file system of another user that cannot have devices.
// Without the option allow_other, FUSE refuses root too; in a user namespace, it refuses all processes outside.
func (w *worker) foreignFUSE(dir int, link name) bool {
	fd, err := openAt(dir, link, unix.O_PATH)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var system unix.Statfs_t
	if err := unix.Fstatfs(fd, &system); err != nil || system.Type != unix.FUSE_SUPER_MAGIC {
		return false
	}
	if system.Flags&unix.MS_NODEV != 0 { // ST_NODEV of statfs(2)
		return true
	}
	user := userNamespace(w.dir)
	return user != "" && user != firstUserNamespace // the kernel lets no device be opened on a file system of a user namespace
}

// alone reports whether the process at hand has one thread.
func (w *worker) alone() (bool, error) {
	var tasks unix.Statx_t
	if err := statAt(w.dir, name("task\x00"), unix.STATX_NLINK, &tasks); err != nil {
		return false, w.unread("task", err)
	}
	return tasks.Nlink == 3, nil // two links of any directory, and one for each thread
}

// eachThread calls visit for each thread of the process at hand.
func (w *worker) eachThread(visit func(tid int) error) error {
	return w.list(name("task\x00"), "task", w.tasks, func(_ int, n name) error {
		if err := w.spend(); err != nil {
			return err
		}
		return visit(number(n))
	})
}

// otherTables looks at the tables of descriptors that threads of the process at hand do not share with its first thread.
func (w *worker) otherTables() error {
	w.tables = append(w.tables[:0], w.pid)
	return w.eachThread(func(tid int) error {
		if tid == w.pid {
			return nil
		}
		if w.kcmp {
			for _, other := range w.tables {
				if sameFiles(other, tid) {
					return nil
				}
			}
		}
		if len(w.tables) < maxTables {
			w.tables = append(w.tables, tid)
		}
		return unlessGone(w.descriptors(w.named("task/", tid, "/fd")))
	})
}

// ended reports whether a process without memory has closed all files. It may be a thread of the kernel, which has none; or a zombie,
// which has closed all. Between its last instruction and then, the kernel is closing files that proc does not show.
func (w *worker) ended() error {
	return w.eachThread(func(tid int) error {
		text, err := readAt(w.dir, w.named("task/", tid, "/stat"), w.text)
		if err != nil {
			return unlessGone(w.unread("stat", err))
		}
		s, err := parseStatus(text)
		if err != nil {
			return w.unread("stat of thread "+strconv.Itoa(tid), err)
		}
		if s.kernel || s.closed {
			return nil
		}
		return &unseenError{reason: "is exiting", exiting: true}
	})
}
