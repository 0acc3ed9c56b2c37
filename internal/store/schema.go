package store

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

var (
	metaBucket    = []byte("meta")
	podsBucket    = []byte("pods")
	pluginsBucket = []byte("plugins")
	devicesBucket = []byte("devices")
	cordonsBucket = []byte("cordons")
	retiredBucket = []byte("retired")
	historyBucket = []byte("history")
	openBucket    = []byte("open")
	endedBucket   = []byte("ended")

	versionKey = []byte("version")
	checkKey   = []byte("check")
	sumKey     = []byte("sum")
	recordKey  = []byte("record")
)

// A migration takes the file from the version before to its own.
type migration func(*bolt.Tx) error

// migrations are in the order of their versions: migrations[i] leads to version i+1. A file that has none of this
// yet is at version 0. What has been released is never changed; a new schema is a new line.
var migrations = []migration{
	func(tx *bolt.Tx) error { // 1: the first schema
		for _, name := range [][]byte{metaBucket, podsBucket, pluginsBucket} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	},
	func(tx *bolt.Tx) error { // 2: the sum of all records
		var sum uint64
		for _, name := range [][]byte{podsBucket, pluginsBucket} {
			of, err := sumOf(tx.Bucket(name), placeOf(name))
			if err != nil {
				return err
			}
			sum += of
		}
		return tx.Bucket(metaBucket).Put(sumKey, number(sum))
	},
}

// migrate brings the file from version have to the current one, all in one commit.
func migrate(db *bolt.DB, have uint64) error {
	return db.Update(func(tx *bolt.Tx) error {
		for i := have; i < uint64(len(migrations)); i++ {
			if err := migrations[i](tx); err != nil {
				return fmt.Errorf("to version %d: %w", i+1, err)
			}
		}
		meta, version := tx.Bucket(metaBucket), number(uint64(len(migrations)))
		if err := meta.Put(versionKey, version); err != nil {
			return err
		}
		return meta.Put(checkKey, versionCheck(version))
	})
}
