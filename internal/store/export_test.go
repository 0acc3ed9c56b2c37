package store

import (
	"errors"

	"github.com/devmgrd/devmgrd/internal/device"
)

// LimitSize makes the disk as full as if the file could not grow beyond n bytes; 0 lifts the limit.
func (s *Store) LimitSize(n int) { s.db.MaxSize = n }

// FailedToSync has the latest commit be one that is in the file and of which nobody knows whether it is on disk.
func (s *Store) FailedToSync() { s.failure = errors.New("no answer from the disk") }

// Spoil writes what no SavePods or SavePlugin would write. The first of path is a bucket; the last is a key.
func (s *Store) Spoil(value string, path ...string) error {
	return s.update(func(d *draft) (err error) {
		in := d.shelf([]byte(path[0]))
		for _, name := range path[1 : len(path)-1] {
			if in, err = in.shelf([]byte(name)); err != nil {
				return err
			}
		}
		return in.put([]byte(path[len(path)-1]), []byte(value))
	})
}

// Judge says whether a file with this content could be used.
func Judge(data []byte) error {
	_, err := judge("state.db", data)
	return err
}

// VersionCheck is what has to stand beside a version.
var VersionCheck = versionCheck

// Roundtrip encodes a device and decodes it again.
func Roundtrip(d device.Device) (device.Device, error) {
	back, err := decodeDevice(encodeDevice(nil, d))
	back.ID = d.ID
	return back, err
}
