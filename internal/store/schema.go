package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
)

var (
	metaBucket    = []byte("meta")
	podsBucket    = []byte("pods")
	pluginsBucket = []byte("plugins")
	devicesBucket = []byte("devices")

	versionKey = []byte("version")
	recordKey  = []byte("record")
)

// A migration takes the file from the version before to its own.
type migration func(*bolt.Tx) error

// migrations are in the order of their versions: migrations[i] leads to version i+1. A file that has none of this
// yet is at version 0. What has been released is never changed; a new schema is a new line.
var migrations = []migration{
	func(tx *bolt.Tx) error { // 1: the first schema
		for _, name := range [][]byte{podsBucket, pluginsBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	},
}

// openFile opens the state file and brings it to the current version. Before it writes, it reads the whole of what
// is there: nothing that is damaged or not understood is ever changed.
func openFile(path string, log *slog.Logger) (*bolt.DB, original, error) {
	file := original{path: path}
	fail := func(err error) (*bolt.DB, original, error) { return nil, original{}, err }
	known := uint64(len(migrations))
	have, err := inspect(path)
	if errors.Is(err, fs.ErrNotExist) {
		log.Info("starting with empty books", "file", path)
		if err = create(path); err != nil {
			return fail(err)
		}
		have = known
	}
	switch {
	case err != nil:
		return fail(&DamagedError{path, err})
	case have > known:
		return fail(&VersionError{path, have, known})
	}
	o := options()
	o.OpenFile = file.open
	db, err := bolt.Open(path, 0o600, o)
	if err != nil {
		return fail(fmt.Errorf("opening the state file %s: %w", path, err))
	}
	if have < known {
		if err := migrate(db, have); err != nil {
			db.Close()
			return fail(fmt.Errorf("bringing the state file %s from version %d to %d: %w", path, have, known, err))
		}
	}
	return db, file, nil
}

func options() *bolt.Options {
	return &bolt.Options{
		Timeout:        time.Second,
		NoFreelistSync: true, // the free list is rebuilt at the next start: fewer pages in each commit
		FreelistType:   bolt.FreelistMapType,
	}
}

// create makes an empty state file. It appears under its name only when it is whole, so that a crash on the way does
// not leave one that the next start has to refuse.
func create(path string) error {
	fail := func(err error) error { return fmt.Errorf("making the state file %s: %w", path, err) }
	draft := path + ".new"
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fail(err)
	}
	db, err := bolt.Open(draft, 0o600, options())
	if err != nil {
		return fail(err)
	}
	if err := errors.Join(migrate(db, 0), db.Close()); err != nil {
		return fail(err)
	}
	if err := os.Rename(draft, path); err != nil {
		return fail(err)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fail(err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fail(err)
	}
	return nil
}

// inspect reads the file without the right to write and gives its schema version. It fails with fs.ErrNotExist where
// there is no file.
func inspect(path string) (version uint64, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if !info.Mode().IsRegular() {
		return 0, errors.New("it is not a regular file")
	}
	if info.Size() == 0 {
		return 0, errors.New("it is empty")
	}
	// bbolt maps the file and trusts what it reads there: a page that lies makes it panic, and one beyond the end of
	// the file is a fault. Both mean damage, and neither may end the process without a word.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is damaged: %v", r)
		}
	}()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return 0, err
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it is cut short: %d bytes of %d are there", info.Size(), tx.Size())
		}
		meta := tx.Bucket(metaBucket)
		if meta == nil || len(meta.Get(versionKey)) != 8 {
			return errors.New("it holds no schema version, so another program has written it")
		}
		if version = binary.BigEndian.Uint64(meta.Get(versionKey)); version > uint64(len(migrations)) {
			return nil // what is in it is not ours to judge
		}
		for err := range tx.Check() {
			return fmt.Errorf("it is damaged: %w", err)
		}
		return nil
	})
	return version, err
}

// migrate brings the file from version have to the current one, all in one commit.
func migrate(db *bolt.DB, have uint64) error {
	return db.Update(func(tx *bolt.Tx) error {
		for i := have; i < uint64(len(migrations)); i++ {
			if err := migrations[i](tx); err != nil {
				return fmt.Errorf("to version %d: %w", i+1, err)
			}
		}
		meta, err := tx.CreateBucketIfNotExists(metaBucket)
		if err != nil {
			return err
		}
		return meta.Put(versionKey, binary.BigEndian.AppendUint64(nil, uint64(len(migrations))))
	})
}
