package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Books are all that the state file holds.
type Books struct {
	Pods    []device.PodRecord
	Plugins []device.PluginRecord
}

// Read gives what the books in dir hold, and changes nothing in them. It needs them for itself, and fails as Open does, with
// fs.ErrNotExist where there are none.
func Read(dir string, log *slog.Logger) (b Books, err error) {
	fail := func(err error) (Books, error) { return Books{}, err }
	path := filepath.Join(dir, fileName)
	if _, err := os.Stat(path); err != nil {
		return fail(err)
	}
	l, err := takeLock(filepath.Join(dir, lockName))
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, l.release()) }()
	switch have, err := inspect(path); {
	case errors.Is(err, fs.ErrNotExist):
		return fail(err)
	case err != nil:
		return fail(&DamagedError{path, err})
	case have > uint64(len(migrations)):
		return fail(&VersionError{path, have, uint64(len(migrations))})
	case have < uint64(len(migrations)):
		return fail(fmt.Errorf("state file %s is of an older devmgrd (schema version %d): start devmgrd once, which brings it up to date", path, have))
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: options().Timeout})
	if err != nil {
		return fail(fmt.Errorf("opening the state file %s: %w", path, err))
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	s := &Store{db: db, file: original{path: path}, log: log}
	if b.Plugins, err = s.Plugins(); err != nil {
		return fail(err)
	}
	if b.Pods, err = s.Pods(); err != nil {
		return fail(err)
	}
	return b, nil
}
