package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
)

// Config is what Open needs.
type Config struct {
	Dir     string // the state directory; made, closed to others, if it is missing
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// A Store is the open state file. Its methods may be called from several goroutines.
type Store struct {
	db      *bolt.DB
	file    original
	lock    *lock
	log     *slog.Logger
	commits prometheus.Histogram

	mu      sync.Mutex // guards failure
	failure error      // of the latest write; nil: it succeeded
}

// Names in the state directory.
const (
	fileName = "state.db"
	lockName = "lock"
)

// Open opens the books in c.Dir, or starts empty ones where there are none. It fails with a *LockedError, a
// *VersionError or a *DamagedError where somebody has to decide, and leaves the file alone then.
func Open(c Config) (*Store, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the state directory: %w", err)
	}
	l, err := takeLock(filepath.Join(c.Dir, lockName))
	if err != nil {
		return nil, err
	}
	s := &Store{lock: l, log: c.Log, commits: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "devmgrd_store_commit_duration_seconds",
		Help:    "Time of one durable commit to the state file, waiting for the disk included.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15), // 0.1 ms to 1.6 s
	})}
	path := filepath.Join(c.Dir, fileName)
	if s.db, s.file, err = openFile(path, c.Log); err != nil {
		l.release()
		return nil, err
	}
	if c.Metrics != nil {
		c.Metrics.MustRegister(s.commits)
	}
	return s, nil
}

// Close closes the file and gives the lock back.
func (s *Store) Close() error { return errors.Join(s.db.Close(), s.lock.release()) }

// Check gives nil while the books can be kept as far as anybody knows, and otherwise says why not, for /readyz: the
// file is not ours any more, or the latest write has failed. A full disk is noticed by the next write.
func (s *Store) Check() error {
	if err := s.file.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failure
}

// errUnchanged rolls back a transaction that would write what is there already.
var errUnchanged = errors.New("nothing changed")

// update runs change in one transaction and commits it, durably, if change says that there is something to commit.
// It fails if the open file is not the one at its path any more, since nothing in it is durable then.
func (s *Store) update(change func(*bolt.Tx) (bool, error)) error {
	start := time.Now()
	err := s.db.Update(func(tx *bolt.Tx) error {
		changed, err := change(tx)
		if err == nil {
			err = s.file.check()
		}
		if err == nil && !changed {
			err = errUnchanged
		}
		return err
	})
	if errors.Is(err, errUnchanged) {
		return nil
	}
	if err != nil && !errors.As(err, new(*StrayError)) {
		err = fmt.Errorf("writing the state file %s: %w", s.file.path, err)
	}
	s.mu.Lock()
	s.failure = err
	s.mu.Unlock()
	if err == nil {
		s.commits.Observe(time.Since(start).Seconds())
	}
	return err
}

// put writes value under key unless it is there already, and tells whether it wrote.
func put(b *bolt.Bucket, key, value []byte) (bool, error) {
	if old := b.Get(key); old != nil && string(old) == string(value) {
		return false, nil
	}
	return true, b.Put(key, value)
}

// remove deletes key if it is there, and tells whether it was.
func remove(b *bolt.Bucket, key []byte) (bool, error) {
	if b.Get(key) == nil {
		return false, nil
	}
	return true, b.Delete(key)
}
