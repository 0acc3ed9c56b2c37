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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
)

// A file is one of our bbolt files, open or still to be opened.
type file struct {
	path    string
	schema  *schema
	log     *slog.Logger
	open    func() error         // opens the file for update where that failed before
	commits prometheus.Histogram // the time that each takes; nil: not measured

	writing sync.Mutex // guards what follows; bbolt has one writer at a time anyway
	db      *bolt.DB   // nil: the file could not be opened yet
	sum     uint64     // of the records that it held when it was opened or, without db, read

	mu       sync.Mutex   // guards what follows
	identity fileIdentity // the zero value: there is none yet
	failure  error        // of the latest write; nil: it succeeded
}

// An opened file is one that can be written.
type opened struct {
	db   *bolt.DB
	file fileIdentity
	sum  uint64 // of its records
}

// openFile opens a file, making an empty one where there is none, and brings it to the current version. Before it writes, it
// reads the whole of what is there: nothing that is damaged or not understood is ever changed.
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
	if o.db, err = bolt.Open(f.path, 0o600, with); err != nil {
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

// create makes an empty file. It appears under its name only when it is whole, so that a crash on the way does not leave half
// of one.
func (f *file) create() (err error) {
	draft := f.path + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("creating the %s %s: %w", f.schema.title, f.path, err)
			os.Remove(draft) // where the disk is full it would be in the way of others
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

// Check returns nil while the file can be written as far as is known, and otherwise the reason, for /readyz: the file is not
// ours any more, or the latest write has failed. A full disk is noticed by the next write.
func (f *file) Check() error {
	f.mu.Lock()
	original, failure := f.identity, f.failure
	f.mu.Unlock()
	if err := original.check(); err != nil {
		return err
	}
	return failure
}

// fail notes how the latest write ended.
func (f *file) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// errUnchanged rolls back a transaction that would write what is there already.
var errUnchanged = errors.New("nothing changed")

// update runs change in one transaction and commits it, durably, if there is something to commit. It fails if the open
// file is not the one at its path any more, since nothing in it is durable then.
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
	// A commit whose sync has failed may be in the file or not: to find there what was to be written is no proof then. The
	// next one writes in any case.
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

// WriteTo writes a copy of the file as it is at this moment, while it is in use. Commits go on however slowly w takes it: it
// is copied in memory first.
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

// damagedName is what a damaged file is renamed to, with the time; a second one of the same second has a number too.
const damagedName = ".damaged-"

// setAside renames a damaged file, so that it is out of the way and can be looked at. It never takes another one's name.
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
