package store

import (
	"encoding/json"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A transaction changes the records of a file. It maintains the sum. All writes but those of migrations go through it; a migration sets sumKey.
type transaction struct {
	root    bucket
	sum     uint64
	changed bool
}

// A bucket is a bucket in a transaction, and its place in the sum.
type bucket struct {
	*bolt.Bucket
	place place
	tx    *transaction
}

func newTransaction(tx *bolt.Tx, sum uint64) *transaction {
	d := &transaction{sum: sum}
	d.root = bucket{tx.Cursor().Bucket(), top, d}
	return d
}

// bucket returns the innermost of these buckets, and creates those that are missing.
func (d *transaction) bucket(path ...[]byte) (in bucket, err error) {
	in = d.root
	for _, name := range path {
		b, err := in.CreateBucketIfNotExists(name)
		if err != nil {
			return in, err
		}
		in = bucket{b, in.place.fold(name), d}
	}
	return in, nil
}

// find returns an inner bucket, if it exists.
func (s bucket) find(name []byte) (bucket, bool) {
	b := s.Bucket.Bucket(name)
	return bucket{b, s.place.fold(name), s.tx}, b != nil
}

// forget deletes key from the innermost of these buckets, if it exists.
func (d *transaction) forget(key []byte, path ...[]byte) error {
	in, there := d.root, true
	for _, name := range path {
		if in, there = in.find(name); !there {
			return nil
		}
	}
	return in.remove(key)
}

// putDevice writes a device's record, in JSON, into a bucket that has a bucket for each resource.
func (d *transaction) putDevice(name []byte, r device.ResourceName, id device.ID, record any) error {
	value, err := json.Marshal(record)
	if err != nil {
		return err
	}
	of, err := d.bucket(name, []byte(r))
	if err != nil {
		return err
	}
	return of.put([]byte(id), value)
}

// put writes value under key, unless it is already there.
func (s bucket) put(key, value []byte) error {
	old := s.Get(key)
	if old != nil && string(old) == string(value) {
		return nil
	}
	if old != nil {
		s.tx.sum -= s.place.hash(key, old)
	}
	s.tx.sum += s.place.hash(key, value)
	s.tx.changed = true
	return s.Put(key, value)
}

// remove deletes key, if it exists.
func (s bucket) remove(key []byte) error {
	old := s.Get(key)
	if old == nil {
		return nil
	}
	s.tx.sum -= s.place.hash(key, old)
	s.tx.changed = true
	return s.Delete(key)
}

// clear removes an inner bucket with its content, if it exists.
func (s bucket) clear(name []byte) error {
	in, there := s.find(name)
	if !there {
		return nil
	}
	s.tx.sum -= sumOf(in.Bucket, in.place)
	s.tx.changed = true
	return s.DeleteBucket(name)
}
