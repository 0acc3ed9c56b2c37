package store

import (
	"encoding/json"
	"fmt"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readCordons reads the cordons of both kinds. A cordon with an unreadable value counts as one without a reason: the device stays
// out of service.
func readCordons(tx *bolt.Tx, log *slog.Logger) (all []device.Cordon) {
	for _, bucket := range [][]byte{cordonsBucket, declaredBucket} {
		for d, value := range eachDevice(tx, bucket) {
			c := device.Cordon{}
			if err := json.Unmarshal(value, &c); err != nil {
				log.Warn("cordon record unreadable; device stays cordoned", "resource", d.Resource, "device", d.ID, "err", err)
			}
			c.Resource, c.ID, c.Declared = d.Resource, d.ID, string(bucket) == string(declaredBucket)
			all = append(all, c)
		}
	}
	return all
}

// SaveCordons makes some cordons durable and forgets others, in one commit.
func (s *Store) SaveCordons(save, forget []device.Cordon) error {
	return s.update(func(d *transaction) error {
		if err := putCordons(d, cordonsBucket, save); err != nil {
			return err
		}
		for _, c := range forget {
			if err := d.forget([]byte(c.ID), cordonsBucket, []byte(c.Resource)); err != nil {
				return fmt.Errorf("cordon of %s/%s: %w", c.Resource, c.ID, err)
			}
		}
		return nil
	})
}

// SaveDeclaredCordons replaces the cordons that the Node's annotation declares.
func (s *Store) SaveDeclaredCordons(all []device.Cordon) error {
	return s.update(func(d *transaction) error {
		if err := d.root.clear(declaredBucket); err != nil {
			return fmt.Errorf("declared cordons: %w", err)
		}
		return putCordons(d, declaredBucket, all)
	})
}

func putCordons(d *transaction, name []byte, all []device.Cordon) error {
	for _, c := range all {
		if err := d.putDevice(name, c.Resource, c.ID, c); err != nil {
			return fmt.Errorf("cordon of %s/%s: %w", c.Resource, c.ID, err)
		}
	}
	return nil
}
