package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// actionLimits bound the stored actions. The oldest ones go first.
type actionLimits struct {
	count, bytes int
	age          time.Duration
}

var defaultActionLimits = actionLimits{10_000, 16 << 20, 365 * 24 * time.Hour}

// The buckets of actions. devmgrd's own do not displace operators' ones.
var (
	actionsBucket    = []byte("actions")
	ownActionsBucket = []byte("ownActions")
)

// SaveActions makes actions durable, in the order of their times. The same commit removes the oldest actions beyond the limits: 10 000 actions,
// 16 MiB, a year.
func (h *History) SaveActions(all ...device.Action) error {
	return h.guarded(func() error {
		return h.update(func(d *transaction) error {
			latest := map[string]time.Time{} // by bucket
			for _, a := range all {
				if err := d.addAction(a); err != nil {
					return err
				}
				latest[string(bucketOf(a))] = a.At
			}
			for name, at := range latest {
				actions, err := d.bucket([]byte(name))
				if err != nil {
					return err
				}
				if err := actions.trim(spanKey(at.Add(-h.actions.age), 0), h.actions.count, h.actions.bytes); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (d *transaction) addAction(a device.Action) error {
	value, err := json.Marshal(a)
	if err != nil {
		return err
	}
	actions, err := d.bucket(bucketOf(a))
	if err != nil {
		return err
	}
	var number uint64 // distinguishes actions of the same moment
	for actions.Get(spanKey(a.At, number)) != nil {
		number++
	}
	return actions.put(spanKey(a.At, number), value)
}

// bucketOf returns the bucket of an action.
func bucketOf(a device.Action) []byte {
	if a.Own {
		return ownActionsBucket
	}
	return actionsBucket
}

// trim removes the records before the key oldest, and then the first ones until at most most records with mostBytes bytes are
// left.
func (s bucket) trim(oldest []byte, most, mostBytes int) error {
	count, size := 0, 0
	var keys [][]byte
	for key, value := range each(s.Bucket) {
		count, size = count+1, size+len(key)+len(value)
	}
	for key, value := range each(s.Bucket) {
		if bytes.Compare(key, oldest) >= 0 && count <= most && size <= mostBytes {
			break
		}
		count, size = count-1, size-len(key)-len(value)
		keys = append(keys, bytes.Clone(key))
	}
	for _, key := range keys {
		if err := s.remove(key); err != nil {
			return err
		}
	}
	return nil
}

// Actions returns the actions since then, ordered by time. It leaves out unreadable records.
func (h *History) Actions(since time.Time) ([]device.Action, error) {
	var operators, own []spanEntry
	err := h.view(func(tx *bolt.Tx) {
		operators, own = entries(tx, actionsBucket, spanKey(since, 0)), entries(tx, ownActionsBucket, spanKey(since, 0))
	})
	return decodeActions(operators, own, h.log), err
}

// decodeActions returns the actions of both buckets, ordered by time. It leaves out unreadable records.
func decodeActions(operators, own []spanEntry, log *slog.Logger) (all []device.Action) {
	for i, e := range slices.Concat(operators, own) {
		var a device.Action
		at, err := timeOf(e.key)
		if err == nil {
			err = json.Unmarshal(e.value, &a)
		}
		if err != nil {
			log.Warn("ignoring unreadable action record", "key", fmt.Sprintf("%.64x", e.key), "err", err)
			continue
		}
		a.At, a.Own = at, i >= len(operators)
		all = append(all, a)
	}
	slices.SortStableFunc(all, func(a, b device.Action) int { return a.At.Compare(b.At) })
	return all
}
