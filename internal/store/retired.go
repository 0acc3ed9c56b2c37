package store

import (
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readRetired returns the forgotten resources that the Node may still show.
func readRetired(tx *bolt.Tx) (all []device.ResourceName) {
	for name := range each(tx.Bucket(retiredBucket)) {
		all = append(all, device.ResourceName(name))
	}
	return all
}

// ForgetResource removes a resource's plugin, devices, cordons, falls and places, and when it was taken off the Node, but not its
// history, and notes that the resource must leave the Node: in one commit.
func (s *Store) ForgetResource(r device.ResourceName) error {
	return s.update(func(d *transaction) error {
		fail := func(err error) error { return fmt.Errorf("forgetting resource %s: %w", r, err) }
		for _, name := range [][]byte{pluginsBucket, cordonsBucket, fallsBucket, placesBucket} {
			of, there := d.root.find(name)
			if !there {
				continue
			}
			if err := of.clear([]byte(r)); err != nil {
				return fail(err)
			}
		}
		if err := d.forget([]byte(r), uncountedBucket); err != nil {
			return fail(err)
		}
		retired, err := d.bucket(retiredBucket)
		if err == nil {
			err = retired.put([]byte(r), []byte{1})
		}
		if err != nil {
			return fail(err)
		}
		return nil
	})
}

// DropRetired removes the notes on resources that the Node no longer shows.
func (s *Store) DropRetired(gone []device.ResourceName) error {
	return s.update(func(d *transaction) error {
		for _, r := range gone {
			if err := d.forget([]byte(r), retiredBucket); err != nil {
				return fmt.Errorf("retired resource %s: %w", r, err)
			}
		}
		return nil
	})
}
