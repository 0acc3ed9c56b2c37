package store

import (
	"bytes"
	"io"
	"log/slog"

	bolt "go.etcd.io/bbolt"
)

// Look reads a state file, or a copy of one, wherever it is, and changes nothing. The whole file is verified first. It fails as
// Open does; and while a devmgrd has the file open, since then it may change at any moment: Store.WriteTo makes a copy.
func Look(path string, log *slog.Logger) (b Books, version uint64, err error) {
	found, err := inspect(path)
	if err != nil {
		return Books{}, 0, err
	}
	b, err = readFile(path, log)
	return b, found.version, err
}

// WriteTo writes a copy of the state file as it is at this moment, while it is in use. Commits go on however slowly w
// takes it: it is copied in memory first.
func (s *Store) WriteTo(w io.Writer) (n int64, err error) {
	s.writing.Lock()
	db := s.db
	s.writing.Unlock()
	if db == nil {
		return 0, s.Check()
	}
	// A commit for which the file has to grow waits until nobody reads any more, so no reader may wait for w.
	var copied bytes.Buffer
	err = db.View(func(tx *bolt.Tx) error {
		copied.Grow(int(tx.Size()))
		_, err := tx.WriteTo(&copied)
		return err
	})
	if err != nil {
		return 0, err
	}
	return copied.WriteTo(w)
}
