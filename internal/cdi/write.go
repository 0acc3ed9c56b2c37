package cdi

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
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
	s, err := one.spec(f.Boot, hook)
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
	path := filepath.Join(f.Dir, fileName(one.Request))
	draft := path + draftSuffix
	if err = os.WriteFile(draft, text, 0o600); err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		os.Remove(draft)
	}
	return err
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

// written reports whether a file is there as it should be.
func (f *Files) written(one *File) bool {
	want, _, err := f.content(one)
	if err != nil {
		return false
	}
	is, err := os.ReadFile(filepath.Join(f.Dir, fileName(one.Request)))
	return err == nil && bytes.Equal(is, want)
}
