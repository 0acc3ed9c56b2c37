package store

import (
	"errors"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// LimitActions changes what is kept of actions.
func (h *History) LimitActions(count, bytes int, age time.Duration) {
	h.actions = actionLimits{count, bytes, age}
}

// LimitSize makes the disk as full as if the file could not grow beyond n bytes; 0 lifts the limit.
func (s *Store) LimitSize(n int) { s.db.MaxSize = n }

// FailedToSync puts the store into the state after a commit that is in the file and may not be on disk.
func (s *Store) FailedToSync() { s.failure = errors.New("no answer from the disk") }

// Spoil writes what no Save would write. The last of path is a key, the others are buckets.
func (s *file) Spoil(value string, path ...string) error {
	return s.update(func(d *transaction) error {
		var names [][]byte
		for _, name := range path[:len(path)-1] {
			names = append(names, []byte(name))
		}
		in, err := d.bucket(names...)
		if err != nil {
			return err
		}
		return in.put([]byte(path[len(path)-1]), []byte(value))
	})
}

// Pods, Plugins and Cordons return one kind of records.
func (s *Store) Pods() ([]device.PodRecord, error) {
	has, err := s.State()
	return has.Pods, err
}

func (s *Store) Plugins() ([]device.PluginRecord, error) {
	has, err := s.State()
	return has.Plugins, err
}

func (s *Store) Cordons() ([]device.Cordon, error) {
	has, err := s.State()
	return has.Cordons, err
}

// Judge says whether a file with this content could be used.
func Judge(data []byte) error {
	_, err := stateSchema.judge("state.db", data)
	return err
}

// JudgeHistory says whether a history with this content could be used.
func JudgeHistory(data []byte) error {
	_, err := historySchema.judge("history.db", data)
	return err
}

// VersionCheck is what has to stand next to a version.
var VersionCheck = versionCheck

// Roundtrip encodes a device and decodes it again.
func Roundtrip(d device.Device) (device.Device, error) {
	back, err := decodeDevice(encodeDevice(nil, d))
	back.ID = d.ID
	return back, err
}

// EncodeDevice returns what is stored of a device under its ID.
func EncodeDevice(d device.Device) []byte { return encodeDevice(nil, d) }
