package store

import (
	"fmt"

	bolt "go.etcd.io/bbolt"
)

var (
	metaBucket      = []byte("meta")
	podsBucket      = []byte("pods")
	pluginsBucket   = []byte("plugins")
	devicesBucket   = []byte("devices")
	cordonsBucket   = []byte("cordons")
	declaredBucket  = []byte("declaredCordons")
	fallsBucket     = []byte("falls")
	placesBucket    = []byte("places")
	retiredBucket   = []byte("retired")
	uncountedBucket = []byte("uncounted")
	claimsBucket    = []byte("claims")
	openBucket      = []byte("open")
	endedBucket     = []byte("ended")

	versionKey = []byte("version")
	checkKey   = []byte("check")
	sumKey     = []byte("sum")
	recordKey  = []byte("record")
)

// A schema describes the content of one of devmgrd's files.
type schema struct {
	title      string   // the file's name in messages
	remedy     string   // the remedy for damage
	buckets    [][]byte // required in each version
	unchecked  uint64   // the last version without a checksum
	migrations []migration

	// freeList has bbolt keep its list of free pages in the file. Without it a commit writes fewer pages, and bbolt reads the whole
	// tree when it opens the file and when a commit fails, in a goroutine where a fault ends the process.
	freeList bool
}

// version returns the current version.
func (s *schema) version() uint64 { return uint64(len(s.migrations)) }

// A migration brings the file from the previous version to its own.
type migration func(*bolt.Tx) error

// stateSchema is the state file's. migrations[i] leads to version i+1; a new file is at version 0. Released migrations never
// change; a new version is a new entry.
var stateSchema = schema{
	title:     "state file",
	remedy:    "restore it from a backup, or start devmgrd, which sets it aside and asks the container runtime which devices are in use",
	buckets:   [][]byte{metaBucket, podsBucket, pluginsBucket},
	unchecked: 1,
	migrations: []migration{
		func(tx *bolt.Tx) error { // 1: the first schema
			return makeBuckets(tx, metaBucket, podsBucket, pluginsBucket)
		},
		func(tx *bolt.Tx) error { // 2: the sum of all records
			sum := sumOf(tx.Bucket(podsBucket), placeOf(podsBucket)) + sumOf(tx.Bucket(pluginsBucket), placeOf(pluginsBucket))
			return tx.Bucket(metaBucket).Put(sumKey, number(sum))
		},
	},
}

// historySchema is the history's.
var historySchema = schema{
	title:    "history file",
	remedy:   "devmgrd sets it aside at its next start and creates an empty one; assignments do not depend on it",
	buckets:  [][]byte{metaBucket, openBucket, endedBucket},
	freeList: true,
	migrations: []migration{
		func(tx *bolt.Tx) error { // 1: the first schema
			if err := makeBuckets(tx, metaBucket, openBucket, endedBucket); err != nil {
				return err
			}
			return tx.Bucket(metaBucket).Put(sumKey, number(0))
		},
	},
}

func makeBuckets(tx *bolt.Tx, names ...[]byte) error {
	for _, name := range names {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	return nil
}

// migrate brings a file from version have to the current one in one commit.
func (s *schema) migrate(db *bolt.DB, have uint64) error {
	return db.Update(func(tx *bolt.Tx) error {
		for i := have; i < s.version(); i++ {
			if err := s.migrations[i](tx); err != nil {
				return fmt.Errorf("to version %d: %w", i+1, err)
			}
		}
		meta, version := tx.Bucket(metaBucket), number(s.version())
		if err := meta.Put(versionKey, version); err != nil {
			return err
		}
		return meta.Put(checkKey, versionCheck(version))
	})
}
