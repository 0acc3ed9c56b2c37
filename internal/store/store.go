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

	"github.com/devmgrd/devmgrd/internal/device"
)

// Config is what Open and Recover need.
type Config struct {
	Dir     string // the state directory; created with mode 0700 if it is missing
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// A Store is the open state file. Its methods are safe for concurrent use.
type Store struct {
	file
	lock *os.File
}

// File names in the state directory: the state file, the history, and the lock for both.
const (
	FileName    = "state.db"
	HistoryName = "history.db"
	lockName    = "lock"
)

// Open opens the state file in c.Dir, or creates an empty one. Where an operator has to decide, it fails with a *LockedError,
// a *VersionError, a *ForeignError or a *DamagedError, and leaves the file unchanged.
func Open(c Config) (*Store, error) {
	s, err := prepare(c)
	if err != nil {
		return nil, err
	}
	o, err := s.openFile()
	if err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	s.use(o)
	s.register(c)
	return s, nil
}

// Recover is Open for a daemon that must run in spite of a damaged state file. It also returns the file's content.
//
// Recover sets a damaged file aside and starts a new one: readable parts of a damaged file are not trustworthy. If the disk
// is full or read-only, Recover still returns the file's content, and writes fail until the disk is writable.
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
		return nil, State{}, errors.Join(err, s.lock.Close())
	}
	s.register(c)
	return s, has, nil
}

// prepare returns a Store without an open file.
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
	damaged := prometheus.NewDesc("devmgrd_store_damaged_files", "Damaged state files that have been set aside and are still in the state directory.", nil, nil)
	c.Metrics.MustRegister(s.commits, prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		to <- prometheus.MustNewConstMetric(damaged, prometheus.GaugeValue, s.damagedFiles())
	}))
}

// damagedFiles counts the files set aside. An unreadable directory counts as empty, and fails elsewhere.
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

// openOrReplace opens and reads the file. It sets a damaged file aside and starts a new one.
func (s *Store) openOrReplace() (opened, State, error) {
	o, err := s.openFile()
	if err == nil {
		var has State
		if has, err = readState(o.db, s.path, s.log); err == nil {
			return o, has, nil
		}
		err = errors.Join(err, o.db.Close())
	}
	damage, ok := errors.AsType[*DamagedError](err)
	if !ok {
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

// readOnly returns the content of a file that cannot be written. A missing or damaged file has none: it is created, or set
// aside, as soon as possible.
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

// isTransient reports whether an operator may fix the disk error while devmgrd runs.
func isTransient(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS)
}

// reopen opens a file that could not be written before. Its content must be unchanged since.
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

// Close closes the file and releases the lock.
func (s *Store) Close() error {
	s.writing.Lock()
	defer s.writing.Unlock()
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, s.lock.Close())
}

// SaveAll makes pods and plugins durable in one commit: all of them, or none. It serves an import as a whole.
func (s *Store) SaveAll(pods []device.PodRecord, plugins []device.PluginRecord) error {
	return s.update(func(d *transaction) error {
		if err := savePods(d, pods, nil); err != nil {
			return err
		}
		for _, p := range plugins {
			if err := savePlugin(d, p); err != nil {
				return err
			}
		}
		return nil
	})
}
