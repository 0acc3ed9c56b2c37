package store

import bolt "go.etcd.io/bbolt"

// A draft is one transaction on the records of a file. All of them are written through it, which keeps the sum.
type draft struct {
	root    shelf
	sum     uint64
	changed bool
}

// A shelf is a bucket of a draft, and its place in the sum.
type shelf struct {
	*bolt.Bucket
	place place
	draft *draft
}

func newDraft(tx *bolt.Tx, sum uint64) *draft {
	d := &draft{sum: sum}
	d.root = shelf{tx.Cursor().Bucket(), top, d}
	return d
}

// shelf returns a bucket of the file, which is made if it is missing.
func (d *draft) shelf(name []byte) (shelf, error) { return d.root.shelf(name) }

// shelf returns a bucket in a bucket, which is made if it is missing.
func (s shelf) shelf(name []byte) (shelf, error) {
	b, err := s.CreateBucketIfNotExists(name)
	return shelf{b, s.place.fold(name), s.draft}, err
}

// find returns a bucket in a bucket, if it is there.
func (s shelf) find(name []byte) (shelf, bool) {
	b := s.Bucket.Bucket(name)
	return shelf{b, s.place.fold(name), s.draft}, b != nil
}

// put writes value under key, unless it is there already.
func (s shelf) put(key, value []byte) error {
	old := s.Get(key)
	if old != nil && string(old) == string(value) {
		return nil
	}
	if old != nil {
		s.draft.sum -= s.place.hash(key, old)
	}
	s.draft.sum += s.place.hash(key, value)
	s.draft.changed = true
	return s.Put(key, value)
}

// remove deletes key, if it is there.
func (s shelf) remove(key []byte) error {
	old := s.Get(key)
	if old == nil {
		return nil
	}
	s.draft.sum -= s.place.hash(key, old)
	s.draft.changed = true
	return s.Delete(key)
}

// clear removes a bucket in a bucket with all that is in it, if it is there.
func (s shelf) clear(name []byte) error {
	in, there := s.find(name)
	if !there {
		return nil
	}
	sum, err := sumOf(in.Bucket, in.place)
	if err != nil {
		return err
	}
	s.draft.sum -= sum
	s.draft.changed = true
	return s.DeleteBucket(name)
}
