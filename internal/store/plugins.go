package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// readPlugins leaves out an unreadable record: unlike a pod's record, it is a copy of data that the plugin will send again.
func readPlugins(tx *bolt.Tx, log *slog.Logger) (all []device.PluginRecord) {
	plugins := tx.Bucket(pluginsBucket)
	for name := range each(plugins) {
		of := plugins.Bucket(name)
		if of == nil {
			continue // no version has written a record here
		}
		r, err := readPlugin(of)
		if err != nil {
			log.Error("ignoring unreadable plugin record", "resource", string(name), "err", err)
			continue
		}
		r.Resource = device.ResourceName(name)
		all = append(all, r)
	}
	return all
}

func readPlugin(b *bolt.Bucket) (r device.PluginRecord, err error) {
	if err := json.Unmarshal(b.Get(recordKey), &r); err != nil {
		return r, err
	}
	for id, value := range each(b.Bucket(devicesBucket)) {
		d, err := decodeDevice(value)
		if err != nil {
			return r, fmt.Errorf("device %.80q: %w", id, err)
		}
		d.ID = device.ID(id)
		r.Devices = append(r.Devices, d)
	}
	slices.SortFunc(r.Devices, func(a, b device.Device) int { return device.CompareIDs(a.ID, b.ID) })
	return r, nil
}

// SavePlugin makes r durable. It writes only the differences from the stored record.
func (s *Store) SavePlugin(r device.PluginRecord) error {
	return s.update(func(d *transaction) error { return savePlugin(d, r) })
}

// savePlugin also drops the note to take the resource off the Node, if there is one: the resource is back.
func savePlugin(d *transaction, r device.PluginRecord) error {
	fail := func(err error) error { return fmt.Errorf("resource %s: %w", r.Resource, err) }
	if err := d.forget([]byte(r.Resource), retiredBucket); err != nil {
		return fail(err)
	}
	plugin, err := d.bucket(pluginsBucket, []byte(r.Resource))
	if err != nil {
		return fail(err)
	}
	record, err := json.Marshal(r)
	if err != nil {
		return fail(err)
	}
	if err := plugin.put(recordKey, record); err != nil {
		return fail(err)
	}
	devices, err := d.bucket(pluginsBucket, []byte(r.Resource), devicesBucket)
	if err != nil {
		return fail(err)
	}
	if err := saveDevices(devices, r.Devices); err != nil {
		return fail(err)
	}
	return nil
}

// saveDevices makes the bucket hold exactly these devices. It walks the devices and the bucket together, in the text order of
// the bucket's keys, and then writes only the differences.
func saveDevices(to bucket, devices []device.Device) error {
	if byText := func(a, b device.Device) int { return strings.Compare(string(a.ID), string(b.ID)) }; !slices.IsSortedFunc(devices, byText) {
		devices = slices.SortedFunc(slices.Values(devices), byText)
	}
	var gone [][]byte
	var differ []device.Device
	c := to.Cursor()
	key, value := c.First()
	var code []byte
	for _, d := range devices {
		for key != nil && string(key) < string(d.ID) {
			gone = append(gone, bytes.Clone(key))
			key, value = c.Next()
		}
		code = encodeDevice(code[:0], d)
		if key == nil || string(key) != string(d.ID) {
			differ = append(differ, d)
			continue
		}
		if !bytes.Equal(value, code) {
			differ = append(differ, d)
		}
		key, value = c.Next()
	}
	for ; key != nil; key, _ = c.Next() {
		gone = append(gone, bytes.Clone(key))
	}
	for _, key := range gone {
		if err := to.remove(key); err != nil {
			return err
		}
	}
	for _, d := range differ {
		if err := to.put([]byte(d.ID), encodeDevice(nil, d)); err != nil {
			return fmt.Errorf("device %.80q: %w", d.ID, err)
		}
	}
	return nil
}

const (
	healthyBit = 1 << iota
	addedBit   // the time that the device was added follows
)

// encodeDevice appends all of d but its ID. decodeDevice takes back whatever it writes.
func encodeDevice(to []byte, d device.Device) []byte {
	var flags byte
	if d.Healthy {
		flags |= healthyBit
	}
	if d.Added != 0 {
		flags |= addedBit
	}
	to = append(to, flags)
	if d.Added != 0 {
		to = binary.AppendVarint(to, d.Added)
	}
	for _, n := range d.NUMA {
		to = binary.AppendUvarint(to, uint64(n))
	}
	return to
}

func decodeDevice(value []byte) (device.Device, error) {
	if len(value) == 0 || value[0] > healthyBit|addedBit {
		return device.Device{}, errors.New("its flags are unknown")
	}
	d, rest := device.Device{Healthy: value[0]&healthyBit != 0}, value[1:]
	if value[0]&addedBit != 0 {
		added, size := binary.Varint(rest)
		if size <= 0 {
			return device.Device{}, errors.New("the time that it was added cannot be read")
		}
		d.Added, rest = added, rest[size:]
	}
	for len(rest) > 0 {
		n, size := binary.Uvarint(rest)
		if size <= 0 {
			return device.Device{}, errors.New("its NUMA nodes cannot be read")
		}
		d.NUMA, rest = append(d.NUMA, int(n)), rest[size:]
	}
	return d, nil
}
