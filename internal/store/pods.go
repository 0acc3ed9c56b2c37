package store

import (
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

func readPods(tx *bolt.Tx) (all []device.PodRecord, err error) {
	for uid, value := range each(tx.Bucket(podsBucket)) {
		r, err := readPod(device.PodUID(uid), value)
		if err != nil {
			return nil, fmt.Errorf("pod %.80q: %w", uid, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// readPod accepts a record whose UID is its key and in which each container holds the devices that it requests.
func readPod(uid device.PodUID, value []byte) (r device.PodRecord, err error) {
	if err := json.Unmarshal(value, &r); err != nil {
		return r, err
	}
	if r.Demand.Pod.UID != uid {
		return r, fmt.Errorf("the record belongs to pod %.80q", r.Demand.Pod.UID)
	}
	if n := r.Demand.Sidecars; n < 0 || n > len(r.Demand.Containers) {
		return r, fmt.Errorf("%d of %d containers are marked as sidecars", n, len(r.Demand.Containers))
	}
	wants := map[device.Container]map[device.ResourceName]int{}
	for _, d := range r.Demand.Demands {
		if d.Container.Pod != uid {
			return r, fmt.Errorf("container %.80q belongs to pod %.80q", d.Container.Name, d.Container.Pod)
		}
		wants[d.Container] = d.Wants
	}
	for _, as := range r.Assignments {
		asked, ok := wants[as.Container]
		if !ok {
			return r, fmt.Errorf("container %.80q holds devices that it does not request", as.Container.Name)
		}
		delete(wants, as.Container)
		for _, s := range as.Shares {
			if s.Near != nil && len(s.Near) != len(s.IDs) {
				return r, fmt.Errorf("container %.80q holds %d of %.80q, and NUMA nodes of %d", as.Container.Name, len(s.IDs), s.Resource, len(s.Near))
			}
			if len(s.IDs) == 0 || len(s.IDs) != asked[s.Resource] {
				return r, fmt.Errorf("container %.80q holds %d of %.80q and requests %d", as.Container.Name, len(s.IDs), s.Resource, asked[s.Resource])
			}
		}
	}
	return r, nil
}

// SavePods saves the pods in save and forgets those in forget, durably in one commit.
func (s *Store) SavePods(save []device.PodRecord, forget []device.PodUID) error {
	return s.update(func(d *transaction) error { return savePods(d, save, forget) })
}

func savePods(d *transaction, save []device.PodRecord, forget []device.PodUID) error {
	pods, err := d.bucket(podsBucket)
	if err != nil {
		return err
	}
	for _, r := range save {
		value, err := json.Marshal(r)
		if err == nil {
			err = pods.put([]byte(r.Demand.Pod.UID), value)
		}
		if err != nil {
			return fmt.Errorf("pod %s: %w", r.Demand.Pod, err)
		}
	}
	for _, uid := range forget {
		if err := pods.remove([]byte(uid)); err != nil {
			return fmt.Errorf("pod %s: %w", uid, err)
		}
	}
	return nil
}
