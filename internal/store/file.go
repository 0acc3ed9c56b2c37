package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
)

// An opened file is one that can be written.
type opened struct {
	db   *bolt.DB
	file original
	sum  uint64 // of its records
}

// openFile opens the state file, making an empty one where there is none, and brings it to the current version. Before it
// writes, it reads the whole of what is there: nothing that is damaged or not understood is ever changed.
func openFile(path string, log *slog.Logger) (opened, error) {
	found, err := inspect(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := create(path); err != nil {
			return opened{}, err
		}
		log.Info("starting with empty books", "file", path)
		found, err = inspect(path)
	}
	if err != nil {
		return opened{}, err
	}
	o := opened{file: original{path: path}, sum: found.sum}
	with := options()
	with.OpenFile = o.file.open
	if o.db, err = bolt.Open(path, 0o600, with); err != nil {
		return opened{}, fmt.Errorf("opening the state file %s: %w", path, err)
	}
	if known := uint64(len(migrations)); found.version < known {
		if err := migrate(o.db, found.version); err != nil {
			return opened{}, errors.Join(fmt.Errorf("bringing the state file %s from version %d to %d: %w", path, found.version, known, err), o.db.Close())
		}
	}
	return o, nil
}

func options() *bolt.Options {
	return &bolt.Options{
		Timeout:        time.Second,
		NoFreelistSync: true, // the free list is rebuilt at the next start: fewer pages in each commit
		FreelistType:   bolt.FreelistMapType,
	}
}

// create makes an empty state file. It appears under its name only when it is whole, so that a crash on the way does
// not leave half of one.
func create(path string) (err error) {
	draft := path + ".new"
	defer func() {
		if err != nil {
			err = fmt.Errorf("making the state file %s: %w", path, err)
			os.Remove(draft) // where the disk is full it would be in the way of others
		}
	}()
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	db, err := bolt.Open(draft, 0o600, options())
	if err != nil {
		return err
	}
	if err := errors.Join(migrate(db, 0), db.Close()); err != nil {
		return err
	}
	return rename(draft, path)
}

// damagedName is what a damaged state file is renamed to, with the time; a second one of the same second has a number too.
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
