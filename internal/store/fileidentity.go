package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// An identity is a file as it was opened, whatever its path leads to by now.
type fileIdentity struct {
	title, path string
	fd          uintptr
	info        os.FileInfo
}

// open opens the file and notes which one it is. It is bbolt's Options.OpenFile.
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

// check fails if the file at the path is another one by now, or none: what is written then is gone with the process. It
// does not miss a file that has never been there.
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
