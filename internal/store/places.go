package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// readPlaces reads the places of devices in ResourceSlices. An unreadable one is left out: the device gets another place.
func readPlaces(tx *bolt.Tx, log *slog.Logger) (all map[device.ResourceName]map[device.ID]int) {
	for d, value := range eachDevice(tx, placesBucket) {
		k, err := strconv.Atoi(string(value))
		if err != nil || k < 1 {
			log.Warn("ignoring unreadable place of a device", "resource", d.Resource, "device", d.ID, "err", err)
			continue
		}
		of := all[d.Resource]
		lists.Put(&of, d.ID, k)
		lists.Put(&all, d.Resource, of)
	}
	return all
}

// SavePlaces makes the places of a resource's devices durable, and forgets those of its other devices, in one commit. Place 0 is not
// saved: a device without a record has it.
func (s *Store) SavePlaces(r device.ResourceName, places map[device.ID]int) error {
	return s.update(func(d *transaction) error {
		fail := func(err error) error { return fmt.Errorf("places of %s: %w", r, err) }
		of, err := d.bucket(placesBucket, []byte(r))
		if err != nil {
			return fail(err)
		}
		var gone [][]byte
		for id := range each(of.Bucket) {
			if places[device.ID(id)] == 0 {
				gone = append(gone, bytes.Clone(id))
			}
		}
		for _, id := range gone {
			if err := of.remove(id); err != nil {
				return fail(err)
			}
		}
		for id, k := range places {
			if k == 0 {
				continue
			}
			if err := of.put([]byte(id), strconv.AppendInt(nil, int64(k), 10)); err != nil {
				return fail(fmt.Errorf("device %.80q: %w", id, err))
			}
		}
		return nil
	})
}
