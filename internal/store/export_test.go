package store

import "github.com/devmgrd/devmgrd/internal/device"

// LimitSize makes the disk as full as if the file could not grow beyond n bytes; 0 lifts the limit.
func (s *Store) LimitSize(n int) { s.db.MaxSize = n }

// Roundtrip encodes a device and decodes it again.
func Roundtrip(d device.Device) (device.Device, error) {
	back, err := decodeDevice(encodeDevice(nil, d))
	back.ID = d.ID
	return back, err
}
