package store

import (
	"encoding/json"
	"fmt"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readFalls reads the records of devices that became unhealthy. An unreadable one is left out: the device begins again.
func readFalls(db *bolt.DB, log *slog.Logger) (all []device.Falls, err error) {
	err = eachDevice(db, fallsBucket, func(r device.ResourceName, id device.ID, value []byte) {
		rec := device.Falls{}
		if err := json.Unmarshal(value, &rec); err != nil || len(rec.Falls) == 0 && rec.Objection == "" {
			log.Warn("ignoring unreadable record of an unhealthy device", "resource", r, "device", id, "err", err)
			return
		}
		rec.Resource, rec.ID = r, id
		all = append(all, rec)
	})
	return all, err
}

// SaveFalls makes the records of some devices durable and forgets those of others, in one commit.
func (s *Store) SaveFalls(save, forget []device.Falls) error {
	return s.update(func(d *transaction) error {
		for _, rec := range save {
			value, err := json.Marshal(rec)
			if err == nil {
				var of bucket
				if of, err = ofResource(d, fallsBucket, rec.Resource); err == nil {
					err = of.put([]byte(rec.ID), value)
				}
			}
			if err != nil {
				return fmt.Errorf("falls of %s/%s: %w", rec.Resource, rec.ID, err)
			}
		}
		for _, rec := range forget {
			of, err := ofResource(d, fallsBucket, rec.Resource)
			if err == nil {
				err = of.remove([]byte(rec.ID))
			}
			if err != nil {
				return fmt.Errorf("falls of %s/%s: %w", rec.Resource, rec.ID, err)
			}
		}
		return nil
	})
}
