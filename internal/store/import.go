package store

import "github.com/devmgrd/devmgrd/internal/device"

// SaveAll makes pods and plugins durable in one commit: all of them, or none. It serves an import as a whole.
func (s *Store) SaveAll(pods []device.PodRecord, plugins []device.PluginRecord) error {
	return s.update(func(d *transaction) error {
		if err := savePods(d, pods, nil); err != nil {
			return err
		}
		for _, p := range plugins {
			if err := savePlugin(d, p); err != nil {
				return err
			}
		}
		return nil
	})
}
