package store

import bolt "go.etcd.io/bbolt"

// A transaction changes the records of a file. All writes go through it, which maintains the sum.
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

// bucket returns a bucket of the file, creating it if it is missing.
func (d *transaction) bucket(name []byte) (bucket, error) { return d.root.bucket(name) }

// bucket returns an inner bucket, creating it if it is missing.
func (s bucket) bucket(name []byte) (bucket, error) {
	b, err := s.CreateBucketIfNotExists(name)
	return bucket{b, s.place.fold(name), s.tx}, err
}

// find returns an inner bucket, if it exists.
func (s bucket) find(name []byte) (bucket, bool) {
	b := s.Bucket.Bucket(name)
	return bucket{b, s.place.fold(name), s.tx}, b != nil
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
	sum, err := sumOf(in.Bucket, in.place)
	if err != nil {
		return err
	}
	s.tx.sum -= sum
	s.tx.changed = true
	return s.DeleteBucket(name)
}
