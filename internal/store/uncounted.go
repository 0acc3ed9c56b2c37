package store

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// An uncounting is the record of a resource that devmgrd has taken off the Node to offer it through claims.
type uncounting struct {
	Since time.Time `json:"since"`
}

// readUncounted reads when resources have been taken off the Node. An unreadable record is left out.
func readUncounted(tx *bolt.Tx, log *slog.Logger) (all map[device.ResourceName]time.Time) {
	for name, value := range each(tx.Bucket(uncountedBucket)) {
		rec := uncounting{}
		if err := json.Unmarshal(value, &rec); err != nil {
			log.Warn("ignoring unreadable record of an uncounted resource", "resource", string(name), "err", err)
			continue
		}
		lists.Put(&all, device.ResourceName(name), rec.Since)
	}
	return all
}

// SaveUncounted records that resources are taken off the Node now, in one commit.
func (s *Store) SaveUncounted(resources []device.ResourceName, now time.Time) error {
	return s.update(func(d *transaction) error {
		uncounted, err := d.bucket(uncountedBucket)
		if err != nil {
			return fmt.Errorf("uncounted resources: %w", err)
		}
		for _, r := range resources {
			value, err := json.Marshal(uncounting{now.UTC()})
			if err == nil {
				err = uncounted.put([]byte(r), value)
			}
			if err != nil {
				return fmt.Errorf("uncounted resource %s: %w", r, err)
			}
		}
		return nil
	})
}

func readClaims(tx *bolt.Tx) (offered bool) {
	claims := tx.Bucket(claimsBucket)
	return claims != nil && claims.Get(recordKey) != nil
}

// SaveClaims records that resources are offered through claims from now on.
func (s *Store) SaveClaims() error {
	return s.update(func(d *transaction) error {
		claims, err := d.bucket(claimsBucket)
		if err == nil {
			err = claims.put(recordKey, []byte{1})
		}
		if err != nil {
			return fmt.Errorf("recording that resources are offered through claims: %w", err)
		}
		return nil
	})
}
