package store

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Pods gives all pods that are remembered, in the order of their UIDs.
func (s *Store) Pods() ([]device.PodRecord, error) {
	var all []device.PodRecord
	err := s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(podsBucket).ForEach(func(uid, value []byte) error {
			r, err := readPod(device.PodUID(uid), value)
			if err != nil {
				return fmt.Errorf("pod %.80s: %w", uid, err)
			}
			all = append(all, r)
			return nil
		})
	})
	if err != nil {
		return nil, &DamagedError{s.file.path, err}
	}
	return all, nil
}

// readPod takes a record that says of itself what its key says, and in which each container holds what it asks for.
func readPod(uid device.PodUID, value []byte) (r device.PodRecord, err error) {
	if err := json.Unmarshal(value, &r); err != nil {
		return r, err
	}
	if r.Demand.Pod.UID != uid {
		return r, fmt.Errorf("the record is of pod %.80q", r.Demand.Pod.UID)
	}
	wants := map[device.Container]map[device.ResourceName]int{}
	for _, d := range r.Demand.Demands {
		if d.Container.Pod != uid {
			return r, fmt.Errorf("container %.80q is said to be of pod %.80q", d.Container.Name, d.Container.Pod)
		}
		wants[d.Container] = d.Wants
	}
	for _, as := range r.Assignments {
		asked, ok := wants[as.Container]
		if !ok {
			return r, fmt.Errorf("container %.80q holds devices that it does not ask for", as.Container.Name)
		}
		delete(wants, as.Container)
		for _, s := range as.Shares {
			if len(s.IDs) == 0 || len(s.IDs) != asked[s.Resource] {
				return r, fmt.Errorf("container %.80q holds %d of %.80q and asks for %d", as.Container.Name, len(s.IDs), s.Resource, asked[s.Resource])
			}
		}
	}
	return r, nil
}

// SavePods makes save durable and forgets the pods in forget, in one commit.
func (s *Store) SavePods(save []device.PodRecord, forget []device.PodUID) error {
	return s.update(func(tx *bolt.Tx) (bool, error) { return savePods(tx, save, forget) })
}

func savePods(tx *bolt.Tx, save []device.PodRecord, forget []device.PodUID) (changed bool, err error) {
	b := tx.Bucket(podsBucket)
	for _, r := range save {
		value, err := json.Marshal(r)
		if err != nil {
			return false, fmt.Errorf("pod %s: %w", r.Demand.Pod, err)
		}
		did, err := put(b, []byte(r.Demand.Pod.UID), value)
		if err != nil {
			return false, fmt.Errorf("pod %s: %w", r.Demand.Pod, err)
		}
		changed = changed || did
	}
	for _, uid := range forget {
		did, err := remove(b, []byte(uid))
		if err != nil {
			return false, fmt.Errorf("pod %s: %w", uid, err)
		}
		changed = changed || did
	}
	return changed, nil
}
