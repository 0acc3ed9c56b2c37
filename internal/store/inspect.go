package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A finding is inspect's result for a usable file.
type finding struct {
	version uint64 // of its schema
	sum     uint64 // of its records
}

// inspect reads the whole file without writing to it. If the file is unusable, inspect returns fs.ErrNotExist, a
// *DamagedError, a *VersionError, a *ForeignError or an *InUseError.
func (s *schema) inspect(path string) (finding, error) {
	data, err := s.read(path)
	if err != nil {
		return finding{}, err
	}
	return s.judge(path, data)
}

// read reads the file while no other process writes it.
func (s *schema) read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the lock goes with it
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s %s is not a regular file: move it aside", s.title, path)
	}
	if err := flock(f); err != nil {
		return nil, &InUseError{s.title, path, err}
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(f); errors.Is(err, unix.EIO) {
		return nil, s.damaged(path, err)
	} else if err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// lockTimeout bounds the wait for another process that has the file open.
const lockTimeout = time.Second

// flock takes a shared lock against writers. A devmgrd that ends releases its own lock a moment before the state file's. The
// kernel has no wait for a lock with a time limit, so flock retries, as bbolt does, and only at the start.
func flock(f *os.File) error {
	for end := time.Now().Add(lockTimeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK || time.Now().After(end) {
			return err
		}
	}
}

func (s *schema) damaged(path string, err error) error {
	return &DamagedError{s.title, path, err, s.remedy}
}

// judge classifies a file's content. Damage must not pass for another program's file or a newer devmgrd's, since those stop
// the start. Neither of those must pass for damage, since damaged files are set aside.
func (s *schema) judge(path string, data []byte) (finding, error) {
	if len(data) == 0 {
		return finding{}, s.damaged(path, errors.New("it is empty"))
	}
	var f finding
	var version, check, sum []byte
	buckets, found := 0, false // number of the schema's required buckets; whether the file has any content
	err := walk(data, func(in [][]byte, key, value []byte) {
		found = true
		switch {
		case value == nil:
			if len(in) == 0 && slices.ContainsFunc(s.buckets, func(name []byte) bool { return bytes.Equal(key, name) }) {
				buckets++
			}
		case len(in) != 1 || !bytes.Equal(in[0], metaBucket):
			f.sum += placeOf(in...).hash(key, value)
		case bytes.Equal(key, versionKey):
			version = value
		case bytes.Equal(key, checkKey):
			check = value
		case bytes.Equal(key, sumKey):
			sum = value
		}
	})
	switch {
	case errors.Is(err, errFormat):
		return f, &ForeignError{s.title, path, err}
	case err != nil:
		return f, s.damaged(path, err)
	}
	if len(version) == 8 {
		f.version = binary.BigEndian.Uint64(version)
	}
	switch certain := f.version > 0 && f.version <= s.unchecked && check == nil || f.version > s.unchecked && bytes.Equal(check, versionCheck(version)); {
	case certain && f.version > s.version():
		return f, &VersionError{s.title, path, f.version, s.version()} // the rest is for the newer version to check
	case certain && buckets == len(s.buckets) && (f.version <= s.unchecked || bytes.Equal(sum, number(f.sum))):
		return f, nil
	case certain || buckets > 1 || !found: // a flipped bit hides one bucket, or all
		return f, s.damaged(path, errors.New("its records are incomplete or altered"))
	}
	return f, &ForeignError{s.title, path, errors.New("it holds no schema version")}
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
