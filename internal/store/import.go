package store

import (
	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// SaveAll makes pods and plugins durable in one commit: all of them, or nothing. It is for what is taken over from
// elsewhere as a whole.
func (s *Store) SaveAll(pods []device.PodRecord, plugins []device.PluginRecord) error {
	return s.update(func(tx *bolt.Tx) (bool, error) {
		changed, err := savePods(tx, pods, nil)
		if err != nil {
			return false, err
		}
		for _, p := range plugins {
			did, err := savePlugin(tx, p)
			if err != nil {
				return false, err
			}
			changed = changed || did
		}
		return changed, nil
	})
}
