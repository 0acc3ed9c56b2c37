package store

import (
	"errors"
	"fmt"
	"iter"
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

// each yields the records of a bucket, and its inner buckets without a value; nil: none.
func each(b *bolt.Bucket) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		if b == nil {
			return
		}
		c := b.Cursor()
		for key, value := c.First(); key != nil; key, value = c.Next() {
			if !yield(key, value) {
				return
			}
		}
	}
}

// eachDevice yields the devices' records in a bucket that has a bucket for each resource, if there is one.
func eachDevice(tx *bolt.Tx, bucket []byte) iter.Seq2[device.Key, []byte] {
	return func(yield func(device.Key, []byte) bool) {
		resources := tx.Bucket(bucket)
		for name := range each(resources) {
			for id, value := range each(resources.Bucket(name)) {
				if !yield(device.Key{Resource: device.ResourceName(name), ID: device.ID(id)}, value) {
					return
				}
			}
		}
	}
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
	defer func() { err = errors.Join(err, l.Close()) }()
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
	db, err := stateSchema.openReadOnly(path)
	if err != nil {
		return State{}, err
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
	err = db.View(func(tx *bolt.Tx) error {
		pods, err := readPods(tx)
		if err != nil {
			return err
		}
		b = State{
			Pods: pods, Plugins: readPlugins(tx, log), Cordons: readCordons(tx, log), Falls: readFalls(tx, log), Places: readPlaces(tx, log),
			Uncounted: readUncounted(tx, log), Claims: readClaims(tx), Retired: readRetired(tx),
		}
		return nil
	})
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
