package store

import (
	"encoding/json"
	"fmt"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readCordons reads a cordon with an unreadable value as one without a reason: the device stays out of service.
func readCordons(db *bolt.DB, log *slog.Logger) ([]device.Cordon, error) {
	var all []device.Cordon
	err := db.View(func(tx *bolt.Tx) error {
		cordons := tx.Bucket(cordonsBucket)
		if cordons == nil {
			return nil
		}
		return cordons.ForEachBucket(func(name []byte) error {
			return cordons.Bucket(name).ForEach(func(id, value []byte) error {
				c := device.Cordon{}
				if err := json.Unmarshal(value, &c); err != nil {
					log.Warn("ignoring unreadable cordon record", "resource", string(name), "device", string(id), "err", err)
				}
				c.Resource, c.ID = device.ResourceName(name), device.ID(id)
				all = append(all, c)
				return nil
			})
		})
	})
	return all, err
}

// SaveCordons makes some cordons durable and forgets others, in one commit.
func (s *Store) SaveCordons(save, forget []device.Cordon) error {
	return s.update(func(d *transaction) error {
		for _, c := range save {
			value, err := json.Marshal(c)
			if err == nil {
				err = d.cordon(c, func(to bucket) error { return to.put([]byte(c.ID), value) })
			}
			if err != nil {
				return fmt.Errorf("cordon of %s/%s: %w", c.Resource, c.ID, err)
			}
		}
		for _, c := range forget {
			if err := d.cordon(c, func(to bucket) error { return to.remove([]byte(c.ID)) }); err != nil {
				return fmt.Errorf("cordon of %s/%s: %w", c.Resource, c.ID, err)
			}
		}
		return nil
	})
}

// cordon changes the cordons of one resource. The bucket is created with the first cordon; an older devmgrd ignores it.
func (d *transaction) cordon(c device.Cordon, change func(bucket) error) error {
	cordons, err := d.bucket(cordonsBucket)
	if err != nil {
		return err
	}
	of, err := cordons.bucket([]byte(c.Resource))
	if err != nil {
		return err
	}
	return change(of)
}
