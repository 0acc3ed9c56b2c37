package store

import (
	"encoding/json"
	"fmt"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readFalls reads the records of devices that became unhealthy. An unreadable one is left out: the device begins again.
func readFalls(tx *bolt.Tx, log *slog.Logger) (all []device.Falls) {
	for d, value := range eachDevice(tx, fallsBucket) {
		rec := device.Falls{}
		if err := json.Unmarshal(value, &rec); err != nil || len(rec.Falls) == 0 && rec.Objection == "" {
			log.Warn("ignoring unreadable record of an unhealthy device", "resource", d.Resource, "device", d.ID, "err", err)
			continue
		}
		rec.Resource, rec.ID = d.Resource, d.ID
		all = append(all, rec)
	}
	return all
}

// SaveFalls makes the records of some devices durable and forgets those of others, in one commit.
func (s *Store) SaveFalls(save, forget []device.Falls) error {
	return s.update(func(d *transaction) error {
		for _, rec := range save {
			if err := d.putDevice(fallsBucket, rec.Resource, rec.ID, rec); err != nil {
				return fmt.Errorf("falls of %s/%s: %w", rec.Resource, rec.ID, err)
			}
		}
		for _, rec := range forget {
			if err := d.forget([]byte(rec.ID), fallsBucket, []byte(rec.Resource)); err != nil {
				return fmt.Errorf("falls of %s/%s: %w", rec.Resource, rec.ID, err)
			}
		}
		return nil
	})
}
