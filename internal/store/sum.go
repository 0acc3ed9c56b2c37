package store

import (
	"encoding/binary"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"
)

// The file holds one checksum over all of its records: the sum, modulo 2^64, of a hash of each
// key with its value and its place. bbolt itself detects only damage to its two headers, and none to stored
// records: a flipped bit in a device's ID would reach a container, and one in a page's count would lose a pod and assign its
// devices to another. A write updates the sum by the difference, without a second pass over the file.

// A place is the hash of the names of the buckets on the way to a record.
type place uint64

// FNV-1a, as in bbolt's headers.
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
	for ; len(text) >= 8; text = text[8:] { // a loop for each byte costs the tests a third of their time, in counters of coverage
		p = ((((p^place(text[0]))*multiplier^place(text[1]))*multiplier^place(text[2]))*multiplier ^ place(text[3])) * multiplier
		p = ((((p^place(text[4]))*multiplier^place(text[5]))*multiplier^place(text[6]))*multiplier ^ place(text[7])) * multiplier
	}
	for _, b := range text {
		p = (p ^ place(b)) * multiplier
	}
	return p
}

// hash is what a record adds to the sum.
func (p place) hash(key, value []byte) uint64 { return uint64(p.fold(key).fold(value)) }

// placeOf returns the place of the records in the innermost of these buckets.
func placeOf(path ...[]byte) place {
	p := top
	for _, name := range path {
		p = p.fold(name)
	}
	return p
}

// sumOf adds up the records of a bucket and of its inner buckets.
func sumOf(b *bolt.Bucket, p place) (sum uint64) {
	for key, value := range each(b) {
		if value != nil {
			sum += p.hash(key, value)
		} else {
			sum += sumOf(b.Bucket(key), p.fold(key))
		}
	}
	return sum
}

// versionCheck is stored next to the version, so that damage to the version does not look like a newer devmgrd's file.
func versionCheck(version []byte) []byte {
	return binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(version))
}
