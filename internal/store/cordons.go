package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readCordons reads the cordons of both kinds. A cordon with an unreadable value counts as one without a reason: the device stays
// out of service.
func readCordons(db *bolt.DB, log *slog.Logger) (all []device.Cordon, err error) {
	read := func(bucket []byte, declared bool) error {
		return eachDevice(db, bucket, func(r device.ResourceName, id device.ID, value []byte) {
			c := device.Cordon{}
			if err := json.Unmarshal(value, &c); err != nil {
				log.Warn("cordon record unreadable; device stays cordoned", "resource", r, "device", id, "err", err)
			}
			c.Resource, c.ID, c.Declared = r, id, declared
			all = append(all, c)
		})
	}
	err = errors.Join(read(cordonsBucket, false), read(declaredBucket, true))
	return all, err
}

// SaveCordons makes some cordons durable and forgets others, in one commit.
func (s *Store) SaveCordons(save, forget []device.Cordon) error {
	return s.update(func(d *transaction) error {
		if err := putCordons(d, cordonsBucket, save); err != nil {
			return err
		}
		for _, c := range forget {
			of, err := ofResource(d, cordonsBucket, c.Resource)
			if err == nil {
				err = of.remove([]byte(c.ID))
			}
			if err != nil {
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
		value, err := json.Marshal(c)
		if err == nil {
			var of bucket
			if of, err = ofResource(d, name, c.Resource); err == nil {
				err = of.put([]byte(c.ID), value)
			}
		}
		if err != nil {
			return fmt.Errorf("cordon of %s/%s: %w", c.Resource, c.ID, err)
		}
	}
	return nil
}

// ofResource returns the bucket of one resource's devices. It is created with the first record; an older devmgrd ignores it.
func ofResource(d *transaction, name []byte, r device.ResourceName) (bucket, error) {
	all, err := d.bucket(name)
	if err != nil {
		return bucket{}, err
	}
	return all.bucket([]byte(r))
}
