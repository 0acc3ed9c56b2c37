package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// A History is the file of spans and actions. It is separate from the state file so that no damage to it, and no error in it,
// affects an assignment. Its methods are safe for concurrent use.
type History struct {
	file
	actions actionLimits

	guard  locks.Mutex[locks.HistoryFile] // held during each use of the file, so that damage is found by one use at a time; guards what follows
	broken error                          // why the file is no longer used
}

// A spanEntry is a key and its value as they are in the file.
type spanEntry struct{ key, value []byte }

// spanKeyBytes is the length of a key: a time and a number.
const spanKeyBytes = 16

// fullPages fills pages nearly completely: spans that have ended arrive in the order of their keys.
const fullPages = 0.95

// OpenHistory opens the history in the state directory of s, under the lock of s. It also returns the open spans. It never
// fails: it sets a damaged file aside, and the first use that can opens a file that is unusable now. Close the history
// before s.
func OpenHistory(s *Store) (*History, []device.Span) {
	h := &History{actions: defaultActionLimits}
	h.file = file{path: filepath.Join(filepath.Dir(s.path), HistoryName), schema: &historySchema, log: s.log, open: h.reopen}
	open, err := h.OpenSpans()
	if err != nil {
		h.log.Warn("history unavailable", "file", h.path, "err", err)
	}
	return h, open
}

// reopen opens the file, setting a damaged one aside.
func (h *History) reopen() error {
	o, err := h.openFile()
	if damage := (*DamagedError)(nil); errors.As(err, &damage) {
		aside, err := setAside(h.path, time.Now())
		if err != nil {
			return fmt.Errorf("%w; setting it aside: %w", damage, err)
		}
		h.log.Warn("damaged history file set aside", "file", h.path, "aside", aside, "err", damage.Err)
		if o, err = h.openFile(); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	h.use(o)
	return nil
}

// guarded runs a function that uses the file, which it opens if necessary. bbolt maps the file, so later damage or a failing
// disk causes a fault or a panic. Neither may end devmgrd: it stops using the file, and the next start checks it again.
func (h *History) guarded(what func() error) (err error) {
	h.guard.Lock()
	defer h.guard.Unlock()
	if h.broken != nil {
		return h.broken
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			h.broken = fmt.Errorf("history file %s failed while in use: %v; restart devmgrd, which sets it aside if it is damaged", h.path, p)
			err = h.broken
		}
	}()
	if h.db == nil {
		if err := h.reopen(); err != nil {
			return err
		}
	}
	return what()
}

// view runs a function that reads the file.
func (h *History) view(read func(*bolt.Tx)) error {
	return h.guarded(func() error {
		return h.db.View(func(tx *bolt.Tx) error { read(tx); return nil })
	})
}

// Spans returns the spans that had not ended by then: first those that have ended since, ordered by end, then the open ones.
// It leaves out unreadable records.
func (h *History) Spans(since time.Time) ([]device.Span, error) {
	var all []spanEntry
	err := h.view(func(tx *bolt.Tx) { all = readSpans(tx, since) })
	return decodeSpans(all, h.log), err
}

// readSpans copies the spans that had not ended by then.
func readSpans(tx *bolt.Tx, since time.Time) []spanEntry {
	return append(entries(tx, endedBucket, spanKey(since, 0)), entries(tx, openBucket, nil)...)
}

// OpenSpans returns the open spans, ordered by beginning.
func (h *History) OpenSpans() ([]device.Span, error) {
	var open []spanEntry
	err := h.view(func(tx *bolt.Tx) { open = entries(tx, openBucket, nil) })
	return decodeSpans(open, h.log), err
}

// HistoryKeys returns the keys of all spans that have ended, in order.
func (h *History) HistoryKeys() ([]device.SpanKey, error) {
	var all []device.SpanKey
	err := h.view(func(tx *bolt.Tx) {
		for key, value := range each(tx.Bucket(endedBucket)) {
			if at, err := timeOf(key); err == nil {
				all = append(all, device.SpanKey{Until: at, Number: binary.BigEndian.Uint64(key[8:]), Bytes: len(value)})
			}
		}
	})
	return all, err
}

// entries copies the entries of a bucket from a key on.
func entries(tx *bolt.Tx, bucket, from []byte) (all []spanEntry) {
	b := tx.Bucket(bucket)
	if b == nil {
		return nil
	}
	c := b.Cursor()
	for key, value := c.Seek(from); key != nil; key, value = c.Next() {
		all = append(all, spanEntry{bytes.Clone(key), bytes.Clone(value)})
	}
	return all
}

// decodeSpans leaves out unreadable records: no assignment depends on them.
func decodeSpans(entries []spanEntry, log *slog.Logger) []device.Span {
	var all []device.Span
	for _, e := range entries {
		var span device.Span
		err := json.Unmarshal(e.value, &span)
		if err == nil && len(e.key) != spanKeyBytes {
			err = fmt.Errorf("its key has %d bytes", len(e.key))
		}
		if err != nil {
			log.Warn("ignoring unreadable history record", "key", fmt.Sprintf("%.64x", e.key), "err", err)
			continue
		}
		span.Number = binary.BigEndian.Uint64(e.key[8:])
		all = append(all, span)
	}
	return all
}

// SaveHistory makes spans durable, each in place of its open record, and forgets others that have ended, in one commit.
func (h *History) SaveHistory(save []device.Span, forget []device.SpanKey) error {
	return h.guarded(func() error {
		return h.update(func(d *transaction) error {
			open, ended, err := d.spans()
			if err != nil {
				return err
			}
			for _, span := range save {
				if err := saveSpan(open, ended, span); err != nil {
					return fmt.Errorf("history of pod %s: %w", span.Pod, err)
				}
			}
			for _, k := range forget {
				if err := ended.remove(spanKey(k.Until, k.Number)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func saveSpan(open, ended bucket, span device.Span) error {
	value, err := json.Marshal(span)
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

// spans returns the buckets of open and ended spans.
func (d *transaction) spans() (open, ended bucket, err error) {
	if open, err = d.bucket(openBucket); err == nil {
		ended, err = d.bucket(endedBucket)
	}
	if err == nil {
		ended.FillPercent = fullPages
	}
	return open, ended, err
}

// spanKey sorts by time, and then by number. A time before 1970, which only an unset clock returns, is the first.
func spanKey(at time.Time, number uint64) []byte {
	var nanos uint64
	if at.Unix() > 0 {
		nanos = uint64(at.UnixNano())
	}
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(make([]byte, 0, spanKeyBytes), nanos), number)
}

// timeOf returns the time in a key.
func timeOf(key []byte) (time.Time, error) {
	if len(key) != spanKeyBytes {
		return time.Time{}, fmt.Errorf("its key has %d bytes", len(key))
	}
	return time.Unix(0, int64(binary.BigEndian.Uint64(key))).UTC(), nil
}

// WriteTo writes a copy of the file as of now, while the file is in use.
func (h *History) WriteTo(w io.Writer) (n int64, err error) {
	var copied *bytes.Buffer
	err = h.guarded(func() (err error) {
		copied, err = h.copied()
		return err
	})
	if err != nil {
		return 0, err
	}
	return copied.WriteTo(w)
}

// Close closes the file. A file that failed in use stays open until the process ends, because bbolt may hold its locks
// forever.
func (h *History) Close() error {
	h.guard.Lock()
	defer h.guard.Unlock()
	if h.broken != nil || h.db == nil {
		return nil
	}
	return h.db.Close()
}

// HistoryContent is the content of a history file.
type HistoryContent struct {
	Version uint64 // of the file's schema
	Spans   []device.Span
	Actions []device.Action
}

// ReadHistoryFile reads a history file, or a copy of one, and changes nothing. It verifies the whole file first, and fails as
// ReadFile does.
func ReadHistoryFile(path string, log *slog.Logger) (HistoryContent, error) {
	found, err := historySchema.inspect(path)
	if err != nil {
		return HistoryContent{}, err
	}
	db, err := historySchema.openReadOnly(path)
	if err != nil {
		return HistoryContent{}, err
	}
	content := HistoryContent{Version: found.version}
	err = db.View(func(tx *bolt.Tx) error {
		content.Spans = decodeSpans(readSpans(tx, time.Time{}), log)
		content.Actions = decodeActions(entries(tx, actionsBucket, nil), entries(tx, ownActionsBucket, nil), log)
		return nil
	})
	return content, errors.Join(err, db.Close())
}
