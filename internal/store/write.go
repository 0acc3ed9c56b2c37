package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A draft is one transaction on the records. All of them are written through it, which keeps the sum.
type draft struct {
	tx      *bolt.Tx
	sum     uint64
	changed bool
}

// A shelf is a bucket of a draft, and its place in the sum.
type shelf struct {
	*bolt.Bucket
	place place
	draft *draft
}

func (d *draft) shelf(name []byte) shelf { return shelf{d.tx.Bucket(name), placeOf(name), d} }

// shelf gives a bucket in a bucket, making it if it is missing.
func (s shelf) shelf(name []byte) (shelf, error) {
	b, err := s.CreateBucketIfNotExists(name)
	return shelf{b, s.place.fold(name), s.draft}, err
}

// put writes value under key, unless it is there already.
func (s shelf) put(key, value []byte) error {
	old := s.Get(key)
	if old != nil && string(old) == string(value) {
		return nil
	}
	s.count(key, old, value)
	return s.Bucket.Put(key, value)
}

// remove deletes key, if it is there.
func (s shelf) remove(key []byte) error {
	old := s.Get(key)
	if old == nil {
		return nil
	}
	s.count(key, old, nil)
	return s.Bucket.Delete(key)
}

// clear removes a bucket in a bucket with all that is in it, if it is there.
func (s shelf) clear(name []byte) error {
	b := s.Bucket.Bucket(name)
	if b == nil {
		return nil
	}
	sum, err := sumOf(b, s.place.fold(name))
	if err != nil {
		return err
	}
	s.draft.sum -= sum
	s.draft.changed = true
	return s.DeleteBucket(name)
}

// count has the sum hold what is in the place of old; nil: nothing.
func (s shelf) count(key, old, value []byte) {
	s.draft.changed = true
	if old != nil {
		s.draft.sum -= s.place.hash(key, old)
	}
	if value != nil {
		s.draft.sum += s.place.hash(key, value)
	}
}

// errUnchanged rolls back a transaction that would write what is there already.
var errUnchanged = errors.New("nothing changed")

// update runs change in one transaction and commits it, durably, if there is something to commit. It fails if the open
// file is not the one at its path any more, since nothing in it is durable then.
func (s *Store) update(change func(*draft) error) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	start := time.Now()
	err := s.write(change)
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil && !errors.As(err, new(*StrayError)) {
		err = fmt.Errorf("writing the state file %s: %w", s.path, err)
	}
	s.mu.Lock()
	s.failure = err
	s.mu.Unlock()
	if err == nil {
		s.commits.Observe(time.Since(start).Seconds())
	}
	return err
}

func (s *Store) write(change func(*draft) error) error {
	if s.db == nil {
		if err := s.reopen(); err != nil {
			return err
		}
	}
	// A commit whose sync has failed may be in the file or not: to find there what was to be written is no proof then. The
	// next one writes in any case.
	sure := s.failure == nil
	d := &draft{}
	return s.db.Update(func(tx *bolt.Tx) error {
		meta := tx.Bucket(metaBucket)
		d.tx, d.sum = tx, binary.BigEndian.Uint64(meta.Get(sumKey))
		if err := change(d); err != nil {
			return err
		}
		if err := s.file.check(); err != nil {
			return err
		}
		if !d.changed && sure {
			return errUnchanged
		}
		return meta.Put(sumKey, number(d.sum))
	})
}

// reopen opens a file that could not be written before. What it holds has to be what we have read of it.
func (s *Store) reopen() error {
	o, _, err := s.mend()
	if err != nil {
		return err
	}
	if o.sum != s.sum {
		return errors.Join(&ChangedError{s.path}, o.db.Close())
	}
	s.use(o)
	s.log.Info("the state file can be written again")
	return nil
}
