package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// State is the content of the state file.
type State struct {
	Pods    []device.PodRecord    // ordered by UID
	Plugins []device.PluginRecord // ordered by resource
	Cordons []device.Cordon       // ordered by resource and device; those of the Node's annotation last
	Falls   []device.Falls        // ordered by resource and device
	Retired []device.ResourceName // forgotten resources that the Node may still show
	// Places are the pools of those devices that are outside the first pool of their resource in ResourceSlices.
	Places map[device.ResourceName]map[device.ID]int
	// Claims reports that devmgrd has offered resources through claims: there may be slices of them.
	Claims bool
	// Uncounted is when resources were last taken off the Node to be offered through claims.
	Uncounted map[device.ResourceName]time.Time
}

// each calls f for each record of a bucket, if there is one.
func each(db *bolt.DB, bucket []byte, f func(key, value []byte)) error {
	return db.View(func(tx *bolt.Tx) error {
		records := tx.Bucket(bucket)
		if records == nil {
			return nil
		}
		return records.ForEach(func(key, value []byte) error { f(key, value); return nil })
	})
}

// eachDevice calls f for each device's record in a bucket that has a bucket for each resource, if there is one.
func eachDevice(db *bolt.DB, bucket []byte, f func(r device.ResourceName, id device.ID, value []byte)) error {
	return db.View(func(tx *bolt.Tx) error {
		resources := tx.Bucket(bucket)
		if resources == nil {
			return nil
		}
		return resources.ForEachBucket(func(name []byte) error {
			return resources.Bucket(name).ForEach(func(id, value []byte) error { f(device.ResourceName(name), device.ID(id), value); return nil })
		})
	})
}

// Read returns the content of the state file in dir and changes nothing. It needs exclusive use of the file, and fails as
// Open does, with fs.ErrNotExist if there is no file.
func Read(dir string, log *slog.Logger) (b State, err error) {
	path := filepath.Join(dir, FileName)
	if _, err := os.Stat(path); err != nil {
		return State{}, err
	}
	l, err := takeLock(filepath.Join(dir, lockName))
	if err != nil {
		return State{}, err
	}
	defer func() { err = errors.Join(err, l.release()) }()
	found, err := stateSchema.inspect(path)
	if err != nil {
		return State{}, err
	}
	if found.version < stateSchema.version() {
		return State{}, fmt.Errorf("an older devmgrd wrote state file %s (schema version %d): start devmgrd once to migrate the file", path, found.version)
	}
	return readDB(path, log)
}

// readDB opens an inspected file read-only and reads it.
func readDB(path string, log *slog.Logger) (State, error) {
	o := stateSchema.options()
	o.ReadOnly = true
	db, err := bolt.Open(path, 0o600, o)
	if err != nil {
		return State{}, fmt.Errorf("opening the state file %s: %w", path, err)
	}
	b, err := readState(db, path, log)
	return b, errors.Join(err, db.Close())
}

// State returns the content of the file.
func (s *Store) State() (State, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.db == nil {
		return State{}, s.Check()
	}
	return readState(s.db, s.path, s.log)
}

// readState reads the content of an open file.
func readState(db *bolt.DB, path string, log *slog.Logger) (b State, err error) {
	b.Pods, err = readPods(db)
	if err == nil {
		b.Plugins, err = readPlugins(db, log)
	}
	if err == nil {
		b.Cordons, err = readCordons(db, log)
	}
	if err == nil {
		b.Falls, err = readFalls(db, log)
	}
	if err == nil {
		b.Places, err = readPlaces(db, log)
	}
	if err == nil {
		b.Uncounted, err = readUncounted(db, log)
	}
	if err == nil {
		b.Claims, err = readClaims(db)
	}
	if err == nil {
		b.Retired, err = readRetired(db)
	}
	if err != nil {
		return State{}, stateSchema.damaged(path, err)
	}
	return b, nil
}

// ReadFile reads a state file, or a copy of one, and changes nothing. It verifies the whole file first. It fails as Open
// does, and while a devmgrd has the file open, since the file may then change at any moment: use Store.WriteTo for a copy.
func ReadFile(path string, log *slog.Logger) (b State, version uint64, err error) {
	found, err := stateSchema.inspect(path)
	if err != nil {
		return State{}, 0, err
	}
	b, err = readDB(path, log)
	return b, found.version, err
}
