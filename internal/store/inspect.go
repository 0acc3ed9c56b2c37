package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A finding is what inspect has found out about a file that can be used.
type finding struct {
	version uint64 // of its schema
	sum     uint64 // of its records
}

// inspect reads the whole of a file, without the right to write, and says whether it can be used: fs.ErrNotExist where
// there is none, a *DamagedError, a *VersionError or a *ForeignError.
func inspect(path string) (finding, error) {
	data, err := read(path)
	if err != nil {
		return finding{}, err
	}
	return judge(path, data)
}

// read reads the file, while nobody else writes it.
func read(path string) ([]byte, error) {
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
		return nil, fmt.Errorf("state file %s is not a regular file: move it aside", path)
	}
	if err := flock(f); err != nil {
		return nil, &InUseError{path, err}
	}
	data := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead))
	if _, err := data.ReadFrom(f); errors.Is(err, unix.EIO) {
		return nil, &DamagedError{path, err}
	} else if err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// flock keeps writers away. A devmgrd that ends lets go of its lock a moment before it lets go of the state file. The kernel
// knows no wait for a lock that ends by itself, so it is tried again and again, as bbolt does, and only at the start.
func flock(f *os.File) error {
	for end := time.Now().Add(options().Timeout); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err != unix.EWOULDBLOCK || time.Now().After(end) {
			return err
		}
	}
}

// judge says what the content of a file is. Damage of any sort must not pass for a file of another program or of a newer
// devmgrd, since those stop the start; and those must not pass for damage, since that is set aside.
func judge(path string, data []byte) (finding, error) {
	if len(data) == 0 {
		return finding{}, &DamagedError{path, errors.New("it is empty")}
	}
	var f finding
	var version, check, sum []byte
	buckets := 0 // of our three
	err := walk(data, func(in [][]byte, key, value []byte) {
		switch {
		case value == nil:
			if len(in) == 0 && (bytes.Equal(key, metaBucket) || bytes.Equal(key, podsBucket) || bytes.Equal(key, pluginsBucket)) {
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
		return f, &ForeignError{path, err}
	case err != nil:
		return f, &DamagedError{path, err}
	}
	if len(version) == 8 {
		f.version = binary.BigEndian.Uint64(version)
	}
	switch certain := f.version == 1 && check == nil || f.version > 1 && bytes.Equal(check, versionCheck(version)); {
	case certain && f.version > uint64(len(migrations)):
		return f, &VersionError{path, f.version, uint64(len(migrations))} // what else is in it is not ours to judge
	case certain && buckets == 3 && (f.version == 1 || bytes.Equal(sum, number(f.sum))):
		return f, nil
	case certain || buckets > 1: // one flipped bit hides one of them at most
		return f, &DamagedError{path, errors.New("its records are not what was written")}
	}
	return f, &ForeignError{path, errors.New("it holds no schema version")}
}

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }
