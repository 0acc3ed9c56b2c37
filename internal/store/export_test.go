package store

import (
	"errors"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// LimitActions changes what is kept of actions.
func (h *History) LimitActions(count, bytes int, age time.Duration) {
	h.actions = actionLimits{count, bytes, age}
}

// LimitSize makes the disk as full as if the file could not grow beyond n bytes; 0 lifts the limit.
func (s *Store) LimitSize(n int) { s.db.MaxSize = n }

// FailedToSync has the latest commit be one that is in the file and of which nobody knows whether it is on disk.
func (s *Store) FailedToSync() { s.failure = errors.New("no answer from the disk") }

// Spoil writes what no Save would write. The last of path is a key, the others are buckets.
func (s *file) Spoil(value string, path ...string) error {
	return s.update(func(d *transaction) (err error) {
		in := d.root
		for _, name := range path[:len(path)-1] {
			if in, err = in.bucket([]byte(name)); err != nil {
				return err
			}
		}
		return in.put([]byte(path[len(path)-1]), []byte(value))
	})
}

// SpoilHistory writes spans into the state file, as a devmgrd of version 2 did.
func (s *Store) SpoilHistory(spans ...device.Span) error {
	return s.update(func(d *transaction) error {
		in, err := d.bucket(historyBucket)
		if err != nil {
			return err
		}
		open, err := in.bucket(openBucket)
		if err != nil {
			return err
		}
		ended, err := in.bucket(endedBucket)
		if err != nil {
			return err
		}
		for _, span := range spans {
			if err := saveSpan(open, ended, span); err != nil {
				return err
			}
		}
		return nil
	})
}

// HoldsHistory reports whether a state file has the bucket of version 2.
func HoldsHistory(path string) (there bool, err error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return false, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		there = tx.Bucket(historyBucket) != nil
		return nil
	})
	return there, errors.Join(err, db.Close())
}

// Judge says whether a file with this content could be used.
func Judge(data []byte) error {
	_, err := stateSchema.judge("state.db", data)
	return err
}

// JudgeHistory says whether a history with this content could be used.
func JudgeHistory(data []byte) error {
	_, err := historySchema.judge("history.db", data)
	return err
}

// VersionCheck is what has to stand next to a version.
var VersionCheck = versionCheck

// Roundtrip encodes a device and decodes it again.
func Roundtrip(d device.Device) (device.Device, error) {
	back, err := decodeDevice(encodeDevice(nil, d))
	back.ID = d.ID
	return back, err
}

// EncodeDevice returns what is stored of a device under its ID.
func EncodeDevice(d device.Device) []byte { return encodeDevice(nil, d) }
