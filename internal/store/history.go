package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// spanRecord is a device.Span without its number, which is in its key.
type spanRecord struct {
	Pod       device.Pod          `json:"pod"`
	Container string              `json:"container"`
	Resource  device.ResourceName `json:"resource"`
	IDs       []device.ID         `json:"ids"`
	From      time.Time           `json:"from"`
	FromLate  bool                `json:"fromLate,omitempty"`
	Until     time.Time           `json:"until,omitzero"`
	UntilLate bool                `json:"untilLate,omitempty"`
}

// A spanEntry is a key and its value as they are in the file.
type spanEntry struct{ key, value []byte }

// spanKeyBytes is the length of a key: a time, and a number.
const spanKeyBytes = 16

// fullPages has pages filled nearly to the brim: spans that have ended come in the order of their keys.
const fullPages = 0.95

// History gives the spans that had not ended by then: first those that have ended since, in the order of their ends. A record
// that cannot be read is left out. Writers wait for a copy of the records at most, not for their decoding.
func (s *Store) History(since time.Time) ([]device.Span, error) {
	db, err := s.reader()
	if err != nil {
		return nil, err
	}
	var ended, open []spanEntry
	err = db.View(func(tx *bolt.Tx) error {
		ended = spanEntries(tx, endedBucket, spanKey(since, 0))
		open = spanEntries(tx, openBucket, nil)
		return nil
	})
	return decodeSpans(append(ended, open...), s.log), err
}

// HistoryKeys gives the keys of all spans that have ended, in their order.
func (s *Store) HistoryKeys() ([]device.SpanKey, error) {
	db, err := s.reader()
	if err != nil {
		return nil, err
	}
	var all []device.SpanKey
	err = db.View(func(tx *bolt.Tx) error {
		b := historyBucketOf(tx, endedBucket)
		if b == nil {
			return nil
		}
		return b.ForEach(func(key, value []byte) error {
			if len(key) == spanKeyBytes {
				at := time.Unix(0, int64(binary.BigEndian.Uint64(key))).UTC()
				all = append(all, device.SpanKey{Until: at, Number: binary.BigEndian.Uint64(key[8:]), Bytes: len(value)})
			}
			return nil
		})
	})
	return all, err
}

// reader gives the file for reading, without keeping writers away from it.
func (s *Store) reader() (*bolt.DB, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.db == nil {
		return nil, fmt.Errorf("the history cannot be read: %w", s.Check())
	}
	return s.db, nil
}

// readSpans gives the spans that are open, in the order of their beginnings.
func readSpans(db *bolt.DB, log *slog.Logger) ([]device.Span, error) {
	var open []spanEntry
	err := db.View(func(tx *bolt.Tx) error {
		open = spanEntries(tx, openBucket, nil)
		return nil
	})
	return decodeSpans(open, log), err
}

func historyBucketOf(tx *bolt.Tx, name []byte) *bolt.Bucket {
	history := tx.Bucket(historyBucket)
	if history == nil {
		return nil
	}
	return history.Bucket(name)
}

// spanEntries copies what is in a bucket from a key on.
func spanEntries(tx *bolt.Tx, name, from []byte) (all []spanEntry) {
	b := historyBucketOf(tx, name)
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for key, value := c.Seek(from); key != nil; key, value = c.Next() {
		all = append(all, spanEntry{bytes.Clone(key), bytes.Clone(value)})
	}
	return all
}

// decodeSpans leaves out what it cannot read: nobody's devices depend on it.
func decodeSpans(entries []spanEntry, log *slog.Logger) []device.Span {
	var all []device.Span
	for _, e := range entries {
		var r spanRecord
		err := json.Unmarshal(e.value, &r)
		if err == nil && len(e.key) != spanKeyBytes {
			err = fmt.Errorf("its key has %d bytes", len(e.key))
		}
		if err != nil {
			log.Warn("a record of who held which devices cannot be read, and is left out", "key", fmt.Sprintf("%.64x", e.key), "err", err)
			continue
		}
		all = append(all, device.Span{
			Number: binary.BigEndian.Uint64(e.key[8:]), Pod: r.Pod, Container: r.Container, Resource: r.Resource, IDs: r.IDs,
			From: r.From, FromLate: r.FromLate, Until: r.Until, UntilLate: r.UntilLate,
		})
	}
	return all
}

// SaveHistory makes spans durable, each in the place of what it was while it was open, and forgets others that have ended, in
// one commit.
func (s *Store) SaveHistory(save []device.Span, forget []device.SpanKey) error {
	return s.update(func(d *draft) error {
		open, ended, err := d.history()
		if err != nil {
			return fmt.Errorf("history: %w", err)
		}
		for _, span := range save {
			if err := saveSpan(open, ended, span); err != nil {
				return fmt.Errorf("history of pod %s: %w", span.Pod, err)
			}
		}
		for _, k := range forget {
			if err := ended.remove(spanKey(k.Until, k.Number)); err != nil {
				return fmt.Errorf("history: %w", err)
			}
		}
		return nil
	})
}

func saveSpan(open, ended shelf, span device.Span) error {
	value, err := json.Marshal(spanRecord{
		Pod: span.Pod, Container: span.Container, Resource: span.Resource, IDs: span.IDs,
		From: span.From, FromLate: span.FromLate, Until: span.Until, UntilLate: span.UntilLate,
	})
	if err != nil {
		return err
	}
	began := spanKey(span.From, span.Number)
	if span.Until.IsZero() {
		return open.put(began, value)
	}
	if err := open.remove(began); err != nil {
		return err
	}
	return ended.put(spanKey(span.Until, span.Number), value)
}

// history gives the shelves of open spans and of those that have ended. Files that have never had one lack the bucket, which
// an older devmgrd ignores.
func (d *draft) history() (open, ended shelf, err error) {
	b, err := d.tx.CreateBucketIfNotExists(historyBucket)
	if err != nil {
		return open, ended, err
	}
	in := shelf{b, placeOf(historyBucket), d}
	if open, err = in.shelf(openBucket); err != nil {
		return open, ended, err
	}
	ended, err = in.shelf(endedBucket)
	if err == nil {
		ended.FillPercent = fullPages
	}
	return open, ended, err
}

// spanKey sorts by time, and then by number. A time before 1970, which only a clock that is not set can tell, is the first.
func spanKey(at time.Time, number uint64) []byte {
	var nanos uint64
	if at.Unix() > 0 {
		nanos = uint64(at.UnixNano())
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, spanKeyBytes), nanos), number)
}
