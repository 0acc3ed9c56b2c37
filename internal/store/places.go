package store

import (
	"fmt"
	"log/slog"
	"strconv"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readPlaces reads the places of devices in ResourceSlices. An unreadable one is left out: the device gets another place.
func readPlaces(db *bolt.DB, log *slog.Logger) (all map[device.ResourceName]map[device.ID]int, err error) {
	err = eachDevice(db, placesBucket, func(r device.ResourceName, id device.ID, value []byte) {
		k, err := strconv.Atoi(string(value))
		if err != nil || k < 1 {
			log.Warn("ignoring unreadable place of a device", "resource", r, "device", id, "err", err)
			return
		}
		if all == nil {
			all = map[device.ResourceName]map[device.ID]int{}
		}
		if all[r] == nil {
			all[r] = map[device.ID]int{}
		}
		all[r][id] = k
	})
	return all, err
}

// SavePlaces makes the places of a resource's devices durable, and forgets those of its other devices, in one commit. Place 0 is not
// saved: a device without a record has it.
func (s *Store) SavePlaces(r device.ResourceName, places map[device.ID]int) error {
	return s.update(func(d *transaction) error {
		fail := func(err error) error { return fmt.Errorf("places of %s: %w", r, err) }
		of, err := ofResource(d, placesBucket, r)
		if err != nil {
			return fail(err)
		}
		var gone [][]byte
		err = of.ForEach(func(id, _ []byte) error {
			if places[device.ID(id)] == 0 {
				gone = append(gone, append([]byte(nil), id...))
			}
			return nil
		})
		if err != nil {
			return fail(err)
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
