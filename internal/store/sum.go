package store

import (
	"encoding/binary"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"
)

// The file holds one number that stands for all of its records: the sum, as far as it fits into 64 bits, of a hash of each
// key with its value and its place. bbolt itself notices damage to its two headers only, and not to what it is given to
// keep: a bit that flips in a device's ID would reach a container, one in a page's count would lose a pod and give its
// devices to another. A write changes the sum by what it changes in the file, so it costs nothing like a second pass.

// A place is the hash of the names of the buckets on the way to a record.
type place uint64

// FNV-1a, as bbolt has it for its headers.
const (
	top        place = 14695981039346656037
	multiplier place = 1099511628211
)

func (p place) fold(text []byte) place {
	for n := len(text); ; n >>= 8 {
		p = (p ^ place(n&0xff)) * multiplier
		if n < 0x100 {
			break
		}
	}
	for _, b := range text {
		p = (p ^ place(b)) * multiplier
	}
	return p
}

// hash is what a record adds to the sum.
func (p place) hash(key, value []byte) uint64 { return uint64(p.fold(key).fold(value)) }

// placeOf returns the place of what is in the innermost of these buckets.
func placeOf(path ...[]byte) place {
	p := top
	for _, name := range path {
		p = p.fold(name)
	}
	return p
}

// sumOf adds up what is in a bucket and in those in it.
func sumOf(b *bolt.Bucket, p place) (sum uint64, err error) {
	err = b.ForEach(func(key, value []byte) error {
		if value != nil {
			sum += p.hash(key, value)
			return nil
		}
		inner, err := sumOf(b.Bucket(key), p.fold(key))
		sum += inner
		return err
	})
	return sum, err
}

// versionCheck is what stands next to the version, so that damage to it is not taken for a newer devmgrd's file.
func versionCheck(version []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(version))
}
