package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// A file is one of devmgrd's bbolt files, open or not yet opened.
type file struct {
	path    string
	schema  *schema
	log     *slog.Logger
	open    func() error         // opens the file for update where that failed before
	commits prometheus.Histogram // commit durations; nil: not measured

	writing locks.Mutex[locks.StateFile] // guards what follows; bbolt has one writer at a time anyway
	db      *bolt.DB                     // nil: not opened yet
	sum     uint64                       // of the records when the file was opened or, without db, read

	mu       locks.Mutex[locks.Leaf] // guards what follows
	identity fileIdentity            // zero value: none yet
	failure  error                   // of the latest write; nil: it succeeded
}

// An opened is a file that can be written.
type opened struct {
	db   *bolt.DB
	file fileIdentity
	sum  uint64 // of its records
}

// openFile opens a file, creating an empty one if there is none, and migrates it to the current version. It reads the whole
// file before it writes: it never changes a damaged or unsupported one.
func (f *file) openFile() (opened, error) {
	found, err := f.schema.inspect(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := f.create(); err != nil {
			return opened{}, err
		}
		f.log.Info("no file found; creating it", "file", f.path)
		found, err = f.schema.inspect(f.path)
	}
	if err != nil {
		return opened{}, err
	}
	o := opened{file: fileIdentity{title: f.schema.title, path: f.path}, sum: found.sum}
	with := f.schema.options()
	with.OpenFile = o.file.open
	o.db, err = bolt.Open(f.path, 0o600, with)
	if err != nil {
		return opened{}, fmt.Errorf("opening the %s %s: %w", f.schema.title, f.path, err)
	}
	if known := f.schema.version(); found.version < known {
		if err := f.schema.migrate(o.db, found.version); err != nil {
			return opened{}, errors.Join(fmt.Errorf("migrating the %s %s from version %d to %d: %w", f.schema.title, f.path, found.version, known, err), o.db.Close())
		}
	}
	return o, nil
}

func (s *schema) options() *bolt.Options {
	return &bolt.Options{Timeout: lockTimeout, NoFreelistSync: !s.freeList, FreelistType: bolt.FreelistMapType}
}

// openReadOnly opens an inspected file without changing it.
func (s *schema) openReadOnly(path string) (*bolt.DB, error) {
	o := s.options()
	o.ReadOnly = true
	db, err := bolt.Open(path, 0o600, o)
	if err != nil {
		return nil, fmt.Errorf("opening the %s %s: %w", s.title, path, err)
	}
	return db, nil
}

// create creates an empty file. The file gets its name only when complete, so a crash leaves no partial file.
func (f *file) create() (err error) {
	draft := f.path + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("creating the %s %s: %w", f.schema.title, f.path, err)
			os.Remove(draft) // frees space on a full disk
		}
	}()
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(draft, 0o600, f.schema.options())
	if err != nil {
		return err
	}
	if err := errors.Join(f.schema.migrate(db, 0), db.Close()); err != nil {
		return err
	}
	return rename(draft, f.path)
}

func (f *file) use(o opened) {
	f.db, f.sum = o.db, o.sum
	f.mu.Lock()
	defer f.mu.Unlock()
	f.identity = o.file
}

// Check returns nil while the file appears writable, and otherwise the reason, for /readyz: the file was removed or replaced,
// or the latest write has failed. The next write detects a full disk.
func (f *file) Check() error {
	f.mu.Lock()
	original, failure := f.identity, f.failure
	f.mu.Unlock()
	if err := original.check(); err != nil {
		return err
	}
	return failure
}

// fail records the result of the latest write.
func (f *file) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// errUnchanged rolls back a transaction that would change nothing.
var errUnchanged = errors.New("nothing changed")

// update runs change in one transaction and commits it durably, unless nothing has changed. It fails if the path has another
// file than the open one, since nothing in the open one is durable then.
func (f *file) update(change func(*transaction) error) error {
	f.writing.Lock()
	defer f.writing.Unlock()
	start := time.Now()
	err := f.write(change)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil && !errors.As(err, new(*StrayError)) {
		err = fmt.Errorf("writing the %s %s: %w", f.schema.title, f.path, err)
	}
	f.fail(err)
	if err == nil && f.commits != nil {
		f.commits.Observe(time.Since(start).Seconds())
	}
	return err
}

func (f *file) write(change func(*transaction) error) error {
	if f.db == nil {
		if err := f.open(); err != nil {
			return err
		}
	}
	// A commit whose sync has failed may be in the file or not, so an equal record proves nothing. The
	// next commit writes in any case.
	sure := f.failure == nil
	return f.db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		d := newTransaction(tx, binary.BigEndian.Uint64(meta.Get(sumKey)))
		if err := change(d); err != nil {
			return err
		}
		if err := f.identity.check(); err != nil {
			return err
		}
		if !d.changed && sure {
			return errUnchanged
		}
		return meta.Put(sumKey, number(d.sum))
	})
}

// WriteTo writes a copy of the file as of now, while the file is in use. A slow w does not block commits: WriteTo first
// copies the file in memory.
func (f *file) WriteTo(w io.Writer) (n int64, err error) {
	copied, err := f.copied()
	if err != nil {
		return 0, err
	}
	return copied.WriteTo(w)
}

func (f *file) copied() (*bytes.Buffer, error) {
	f.writing.Lock()
	db := f.db
	f.writing.Unlock()
	if db == nil {
		return nil, f.Check()
	}
	// A commit for which the file has to grow waits until no transaction reads, so none may wait for w.
	var all bytes.Buffer
	return &all, db.View(func(tx *bolt.Tx) error {
		all.Grow(int(tx.Size()))
		_, err := tx.WriteTo(&all)
		return err
	})
}

// damagedName precedes the time in the name of a damaged file; a second file of the same second has a number too.
const damagedName = ".damaged-"

// setAside renames a damaged file to keep it for inspection. It never takes another file's name.
func setAside(path string, now time.Time) (to string, err error) {
	stem := path + damagedName + now.UTC().Format("20060102T150405Z")
	to = stem
	for n := 2; ; n++ {
		if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
			return to, rename(path, to)
		} else if err != nil {
			return "", err
		}
		to = fmt.Sprintf("%s.%d", stem, n)
	}
}

// rename renames a file, durably.
func rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// A fileIdentity identifies a file as it was opened, independent of its path.
type fileIdentity struct {
	title, path string
	fd          uintptr
	info        os.FileInfo
}

// open opens the file and records its identity. It is bbolt's Options.OpenFile.
func (o *fileIdentity) open(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	o.info, err = f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	o.fd = f.Fd()
	return f, nil
}

// check fails if the path has another file by now, or none: writes to the open file are lost when the process ends. A file
// that was never opened passes.
func (o *fileIdentity) check() error {
	if o.info == nil {
		return nil
	}
	now, err := os.Stat(o.path)
	switch {
	case err == nil && os.SameFile(now, o.info):
		return nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return &StrayError{Title: o.title, Path: o.path, PID: os.Getpid(), FD: int(o.fd), Removed: err != nil}
	}
	return fmt.Errorf("checking the %s: %w", o.title, err)
}
