package cdi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/devmgrd/devmgrd/internal/device"
)

// draftSuffix is the end of a draft's name. Runtimes read .json and .yaml.
const draftSuffix = ".draft"

// isDraft reports whether a file is a draft, which a process has left that was killed.
func isDraft(name string) bool {
	return strings.HasPrefix(name, filePrefix) && strings.HasSuffix(name, draftSuffix)
}

// content returns what a file contains now.
func (f *Files) content(one *File) ([]byte, *specs.Spec, error) {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	s, err := one.spec(f.Dir, f.Boot, hook)
	if err != nil {
		return nil, nil, err
	}
	text, err := json.Marshal(s)
	return text, s, err
}

// write puts a file's content in its place, at once.
func (f *Files) write(one *File) error {
	text, _, err := f.content(one)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return err
	}
	if one.Metadata.Path != "" { // before the file that names it
		if err := f.place(metadataName(one.Request), one.Metadata.Text, 0o644); err != nil {
			return err
		}
	}
	return f.place(fileName(one.Request), text, 0o600)
}

// place puts text in place of a file, at once.
func (f *Files) place(name string, text []byte, mode fs.FileMode) error {
	path := filepath.Join(f.Dir, name)
	draft := path + draftSuffix
	err := os.WriteFile(draft, text, mode)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		os.Remove(draft)
	}
	return err
}

// erase removes the files of a request.
func (f *Files) erase(of device.ClaimRequest) error {
	for _, name := range []string{fileName(of), metadataName(of)} {
		if err := os.Remove(filepath.Join(f.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readable reports whether the runtime's library reads a file as it is meant. It reads YAML, which has no control characters.
func (f *Files) readable(one *File) bool {
	text, s, err := f.content(one)
	if err != nil {
		return false
	}
	read, err := cdi.ParseSpec(text)
	return err == nil && reflect.DeepEqual(read, s)
}

// written reports whether a file is there as it should be, and its metadata.
func (f *Files) written(one *File) bool {
	want, _, err := f.content(one)
	if err != nil {
		return false
	}
	return f.has(fileName(one.Request), want) && (one.Metadata.Path == "" || f.has(metadataName(one.Request), one.Metadata.Text))
}

func (f *Files) has(name string, want []byte) bool {
	is, err := os.ReadFile(filepath.Join(f.Dir, name))
	return err == nil && bytes.Equal(is, want)
}
