package store

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// Config is what Open and Recover need.
type Config struct {
	Dir     string // the state directory; made, closed to others, if it is missing
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// A Store is the open state file. Its methods may be called from several goroutines.
type Store struct {
	file
	lock *lock
}

// Names in the state directory: of the state file, the history, and the lock for both.
const (
	FileName    = "state.db"
	HistoryName = "history.db"
	lockName    = "lock"
)

// Open opens the state file in c.Dir, or starts empty ones where there are none. It fails with a *LockedError, a
// *VersionError, a *ForeignError or a *DamagedError where somebody has to decide, and leaves the file alone then.
func Open(c Config) (*Store, error) {
	s, err := prepare(c)
	if err != nil {
		return nil, err
	}
	o, err := s.openFile()
	if err != nil {
		return nil, errors.Join(err, s.lock.release())
	}
	s.use(o)
	s.register(c)
	return s, nil
}

// Recover is Open for a daemon that has to go on whatever has become of its state file, and gives what they hold.
//
// A damaged file is set aside, and a new state file is started: what can still be read of it is not to be trusted. Where the
// disk is full or cannot be written, what the file holds is given all the same, and writing fails until there is room.
func Recover(c Config) (*Store, State, error) {
	s, err := prepare(c)
	if err != nil {
		return nil, State{}, err
	}
	o, has, err := s.openOrReplace()
	if err == nil {
		s.use(o)
	} else if isTransient(err) {
		s.log.Error("cannot open state file for writing; retrying", "err", err)
		s.fail(err)
		has, err = s.readOnly()
	}
	if err != nil {
		return nil, State{}, errors.Join(err, s.lock.release())
	}
	s.register(c)
	return s, has, nil
}

// prepare makes a Store without a file.
func prepare(c Config) (*Store, error) {
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("creating the state directory: %w", err)
	}
	l, err := takeLock(filepath.Join(c.Dir, lockName))
	if err != nil {
		return nil, err
	}
	s := &Store{lock: l}
	s.file = file{path: filepath.Join(c.Dir, FileName), schema: &stateSchema, log: c.Log, open: s.reopen, commits: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "devmgrd_store_commit_duration_seconds",
		Help:    "Time of one durable commit to the state file, waiting for the disk included.",
		Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15), // 0.1 ms to 1.6 s
	})}
	return s, nil
}

func (s *Store) register(c Config) {
	if c.Metrics == nil {
		return
	}
	c.Metrics.MustRegister(s.commits, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "devmgrd_store_damaged_files",
		Help: "Damaged state files that have been set aside and are still in the state directory.",
	}, s.damagedFiles))
}

// damagedFiles counts what has been set aside. A directory that cannot be read has none, and fails elsewhere.
func (s *Store) damagedFiles() float64 {
	entries, _ := os.ReadDir(filepath.Dir(s.path))
	n := 0
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), FileName+damagedName) {
			n++
		}
	}
	return float64(n)
}

// openOrReplace opens the file and reads it. If it is damaged it is set aside for a new one.
func (s *Store) openOrReplace() (opened, State, error) {
	o, err := s.openFile()
	if err == nil {
		var has State
		if has, err = readState(o.db, s.path, s.log); err == nil {
			return o, has, nil
		}
		err = errors.Join(err, o.db.Close())
	}
	var damage *DamagedError
	if !errors.As(err, &damage) {
		return opened{}, State{}, err
	}
	to, err := setAside(s.path, time.Now())
	if err != nil {
		return opened{}, State{}, fmt.Errorf("%w; setting it aside: %w", damage, err)
	}
	s.log.Error("state file damaged; replaced by an empty one",
		"file", s.path, "renamed_to", to, "err", damage.Err)
	o, err = s.openFile()
	return o, State{}, err
}

// readOnly gives what a file holds that cannot be written. One that is not there or that is damaged holds nothing: it is
// made, or set aside, as soon as that can be.
func (s *Store) readOnly() (State, error) {
	var has State
	found, err := s.schema.inspect(s.path)
	if err == nil {
		has, err = readDB(s.path, s.log)
	}
	if errors.Is(err, fs.ErrNotExist) || errors.As(err, new(*DamagedError)) {
		return State{}, nil
	}
	s.sum = found.sum
	return has, err
}

// isTransient tells whether an error is one of a disk that may be put right while we wait.
func isTransient(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// reopen opens a file that could not be written before. It must hold what has been read of it.
func (s *Store) reopen() error {
	o, _, err := s.openOrReplace()
	if err != nil {
		return err
	}
	if o.sum != s.sum {
		return errors.Join(&ChangedError{s.path}, o.db.Close())
	}
	s.use(o)
	s.log.Info("state file opened for writing")
	return nil
}

// Close closes the file and gives the lock back.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.lock.release())
}
