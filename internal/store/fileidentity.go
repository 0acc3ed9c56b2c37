package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// A fileIdentity identifies a file as it was opened, independent of its path.
type fileIdentity struct {
	title, path string
	fd          uintptr
	info        os.FileInfo
}

// open opens the file and records its identity. It is bbolt's Options.OpenFile.
func (o *fileIdentity) open(path string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	if o.info, err = f.Stat(); err != nil {
		f.Close()
		return nil, err
	}
	o.fd = f.Fd()
	return f, nil
}

// check fails if the path has another file by now, or none: writes to the open file are lost when the process ends. A file
// that was never opened passes.
func (o *fileIdentity) check() error {
	if o.info == nil {
		return nil
	}
	now, err := os.Stat(o.path)
	switch {
	case err == nil && os.SameFile(now, o.info):
		return nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return &StrayError{Title: o.title, Path: o.path, PID: os.Getpid(), FD: int(o.fd), Removed: err != nil}
	}
	return fmt.Errorf("checking the %s: %w", o.title, err)
}
