package shareddir_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// A harness is a directory with files in it, and one outside to which links lead.
type harness struct {
	*testing.T
	*shareddir.Dir
	path, outside string
}

func newStage(t *testing.T) *harness {
	t.Helper()
	root, err := os.MkdirTemp("", "shared") // short, as a socket's path has to be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	s := &harness{T: t, path: filepath.Join(root, "dir"), outside: filepath.Join(root, "outside")}
	s.must(errors.Join(os.Mkdir(s.path, 0o755), os.Mkdir(s.outside, 0o755), os.WriteFile(filepath.Join(s.outside, "precious"), []byte("precious"), 0o600)))
	s.Dir, err = shareddir.Open(s.path)
	s.must(err)
	t.Cleanup(func() {
		s.Dir.Close()
		if text, err := os.ReadFile(filepath.Join(s.outside, "precious")); string(text) != "precious" {
			t.Errorf("a link was followed: %v", err)
		}
	})
	return s
}

func (s *harness) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// has fails unless just these names are in the directory.
func (s *harness) has(want ...string) {
	s.Helper()
	names, _, err := s.Names(100)
	s.must(err)
	slices.Sort(names)
	if !slices.Equal(names, want) {
		s.Errorf("there are %q, want %q", names, want)
	}
}

// What has been opened stays the same file, and no link is followed to it: at the end, on the way, or out of the directory.
func TestOpen(t *testing.T) {
	s := newStage(t)
	s.must(errors.Join(
		os.MkdirAll(filepath.Join(s.path, "a", "b"), 0o755), os.WriteFile(filepath.Join(s.path, "a", "b", "file"), []byte("inside"), 0o600),
		os.Symlink(s.outside, filepath.Join(s.path, "way")), os.Symlink("a", filepath.Join(s.path, "inside")),
		os.Symlink(filepath.Join(s.outside, "precious"), filepath.Join(s.path, "link")),
	))
	for below, want := range map[string]error{
		"a/b/file": nil, "a/b": nil, "link": nil, "way": nil,
		"way/precious": unix.ENOTDIR, "inside/b/file": unix.ENOTDIR, "nothing": fs.ErrNotExist, "a/b/file/c": unix.ENOTDIR,
		"../outside/precious": unix.EINVAL, "a/../../outside": unix.EINVAL, "": unix.EINVAL, ".": unix.EINVAL, "/etc": unix.EINVAL, "a\x00": unix.EINVAL,
	} {
		e, err := s.Open(below)
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", below, err, want)
		}
		if err == nil {
			e.Close()
		}
	}
	e, err := s.Open("link")
	s.must(err)
	defer e.Close()
	if to, err := e.ReadLink(); e.Info().Mode().Type() != fs.ModeSymlink || to != filepath.Join(s.outside, "precious") {
		t.Errorf("a link is %v, to %q (%v)", e.Info().Mode(), to, err)
	}
	file, err := s.Open("a/b/file")
	s.must(err)
	defer file.Close()
	s.must(errors.Join(os.RemoveAll(filepath.Join(s.path, "a", "b")), os.Symlink(s.outside, filepath.Join(s.path, "a", "b"))))
	if text, err := file.Read(100); string(text) != "inside" {
		t.Errorf("read %q (%v)", text, err)
	}
	if _, err := s.OpenDir("way"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a link is opened as a directory: %v", err)
	}
}

// Only a regular file is read, and only as much as is asked for.
func TestReadFile(t *testing.T) {
	s := newStage(t)
	at := func(name string) string { return filepath.Join(s.path, name) }
	l, err := net.Listen("unix", at("socket"))
	s.must(err)
	defer l.Close()
	s.must(errors.Join(
		os.WriteFile(at("file"), []byte("12345"), 0o600), os.Symlink("file", at("link")), os.Symlink("/dev/zero", at("zero")),
		syscall.Mkfifo(at("fifo"), 0o600), os.Mkdir(at("dir"), 0o700), os.Truncate(at("file"), 5),
	))
	if err := syscall.Mknod(at("device"), syscall.S_IFCHR|0o600, 1<<8|5); err != nil {
		t.Log(err) // no root
	} else if _, err := s.ReadFile("device", 5); err == nil || !strings.Contains(err.Error(), at("device")+" is a device, not a regular file") {
		t.Errorf("a device: %v", err)
	}
	if text, err := s.ReadFile("file", 5); string(text) != "12345" {
		t.Errorf("read %q (%v)", text, err)
	}
	for name, want := range map[string]string{
		"link": "is a symbolic link", "zero": "is a symbolic link", "fifo": "is a FIFO", "dir": "is a directory", "socket": "is a socket", "nothing": "no such file",
	} {
		if _, err := s.ReadFile(name, 5); err == nil || !strings.Contains(err.Error(), at(name)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := s.ReadFile("file", 4); err == nil || !strings.Contains(err.Error(), "longer than the 4 bytes") {
		t.Errorf("a file that is too long: %v", err)
	}
	e, err := s.Open("file")
	s.must(err)
	defer e.Close()
	s.must(os.Truncate(at("file"), 1<<40)) // it grows between the look and the reading
	if _, err := e.Read(5); err == nil || !strings.Contains(err.Error(), "longer than the 5 bytes") {
		t.Errorf("a file that has grown: %v", err)
	}
}

// A socket is changed and dialled under whatever name it has by then, and nothing else is.
func TestSocket(t *testing.T) {
	s := newStage(t)
	at := func(name string) string { return filepath.Join(s.path, name) }
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: at("socket"), Net: "unix"})
	s.must(err)
	defer l.Close()
	l.SetUnlinkOnClose(false)
	e, err := s.Open("socket")
	s.must(err)
	defer e.Close()
	s.must(errors.Join(os.Rename(at("socket"), at("other")), os.Symlink(filepath.Join(s.outside, "precious"), at("socket"))))
	s.must(e.Chmod(0o640))
	if info, err := os.Lstat(at("other")); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the mode is %v (%v)", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(s.outside, "precious")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of another file has become %v (%v)", info.Mode(), err)
	}
	conn, err := e.Dial(t.Context())
	s.must(err)
	conn.Close()
	l.Close()
	if _, err := e.Dial(t.Context()); !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), at("socket")) {
		t.Errorf("a socket on which no process listens: %v", err)
	}
	link, err := s.Open("socket")
	s.must(err)
	defer link.Close()
	typed := new(shareddir.TypeError)
	if _, err := link.Dial(t.Context()); !errors.As(err, &typed) || !errors.As(link.Chmod(0o777), &typed) {
		t.Errorf("a link is dialled: %v", err)
	}
}

// A file is replaced in one step, whatever was there, and a draft stays in no case.
func TestReplaceFile(t *testing.T) {
	for name, leave := range map[string]func(path string) error{
		"nothing": func(string) error { return nil },
		"file":    func(path string) error { return os.WriteFile(path, []byte("old"), 0o644) },
		"FIFO":    func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"empty":   func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.must(leave(filepath.Join(s.path, "file")))
			err := s.WriteFile("file", []byte("durable"))
			if err == nil == (name == "empty") {
				t.Errorf("written over it: %v", err)
			}
			s.has("file")
			s.must(s.ReplaceFile("file", []byte("new")))
			s.has("file")
			text, err := s.ReadFile("file", 100)
			if info, _ := s.Stat("file"); string(text) != "new" || info.Mode() != 0o600 {
				t.Errorf("it has become %q with mode %v (%v)", text, info.Mode(), err)
			}
		})
	}
	s := newStage(t)
	s.must(os.Symlink(filepath.Join(s.outside, "precious"), filepath.Join(s.path, "link")))
	s.must(s.ReplaceFile("link", []byte("new")))
	if err := s.CreateFile("link", nil, 0o600); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file was made where there is one: %v", err)
	}
	s.must(errors.Join(s.CreateFile("made", []byte("text"), 0o600), s.Link("made", "twice"), s.Rename("made", "moved"), s.Exchange("moved", "link"), s.Unlink("twice")))
	if text, err := s.ReadFile("link", 100); string(text) != "text" {
		t.Errorf("the names are not exchanged: %q (%v)", text, err)
	}
	s.has("link", "moved")
}

// What is in the way is removed without following links, as far as the limits go, and its name is free in any case.
func TestRemove(t *testing.T) {
	s := newStage(t)
	wide, deep := filepath.Join(s.path, "wide"), filepath.Join(s.path, "deep")
	s.must(errors.Join(os.Mkdir(wide, 0o700), os.MkdirAll(deep+strings.Repeat("/d", 20), 0o700), os.Symlink(s.outside, filepath.Join(s.path, "link"))))
	for n := range 5000 {
		s.must(os.Link(filepath.Join(s.outside, "precious"), filepath.Join(wide, fmt.Sprint(n))))
	}
	s.must(os.MkdirAll(filepath.Join(s.path, "small", "a", "b"), 0o700))
	s.must(os.Symlink(s.outside, filepath.Join(s.path, "small", "a", "link")))
	for _, name := range []string{"link", "small", "wide", "deep"} {
		s.must(s.Remove(name))
		if _, err := s.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there still: %v", name, err)
		}
	}
	left, _, err := s.Names(100)
	s.must(err)
	if len(left) != 2 || !shareddir.IsDraft(left[0], "wide") && !shareddir.IsDraft(left[0], "deep") {
		t.Errorf("left are %q", left)
	}
	if err := s.Remove("nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is removed: %v", err)
	}
	if err := s.RemoveDrafts("wide"); err != nil {
		t.Errorf("the rest is not removed: %v", err)
	}
}

// Drafts of a crash are removed, and no other file.
func TestRemoveDrafts(t *testing.T) {
	s := newStage(t)
	others := []string{".a.sock.", ".a.sock.mine", ".a.sock1", ".a.sock.1.2", "a.sock", "a.sock.1", ".b.sock.1"}
	for _, name := range append([]string{".a.sock.1", ".a.sock.18446744073709551615"}, others...) {
		s.must(os.WriteFile(filepath.Join(s.path, name), nil, 0o600))
	}
	draft := s.Draft("a.sock")
	s.must(errors.Join(os.Mkdir(filepath.Join(s.path, draft), 0o700), os.Symlink(s.outside, filepath.Join(s.path, s.Draft("a.sock")))))
	if !shareddir.IsDraft(draft, "a.sock") || !strings.HasPrefix(draft, ".") || shareddir.IsDraft(draft, "b.sock") || !shareddir.IsDraft(draft, ".a.sock") {
		t.Errorf("a draft is called %q", draft)
	}
	s.must(s.RemoveDrafts("a.sock"))
	slices.Sort(others)
	s.has(others...)
}

func TestNames(t *testing.T) {
	s := newStage(t)
	for n := range 5 {
		s.must(os.WriteFile(filepath.Join(s.path, fmt.Sprint(n)), nil, 0o600))
	}
	for most, want := range map[int]int{0: 0, 4: 4, 5: 5, 6: 5} {
		if names, more, err := s.Names(most); err != nil || len(names) != want || more != (most < 5) {
			t.Errorf("of 5 names at most %d are %q, more %v (%v)", most, names, more, err)
		}
	}
}

// A directory that has been moved stays the open one, and no longer is the current one.
func TestCurrent(t *testing.T) {
	s := newStage(t)
	if !s.Current() {
		t.Error("the directory is said to be another one")
	}
	s.must(os.Rename(s.path, s.path+"2"))
	if s.Current() {
		t.Error("a directory that was moved is said to be at its path")
	}
	s.must(os.Mkdir(s.path, 0o755))
	s.must(s.ReplaceFile("file", []byte("text")))
	if text, err := os.ReadFile(filepath.Join(s.path+"2", "file")); !bytes.Equal(text, []byte("text")) || s.Current() {
		t.Errorf("another directory was written: %v", err)
	}
	if real, err := s.Real(); err != nil || real != s.path+"2" {
		t.Errorf("it is at %q (%v)", real, err)
	}
}

func TestMake(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := t.TempDir()
	if err := os.Chmod(root, 0o700); err != nil { // which stays so
		t.Fatal(err)
	}
	dir := filepath.Join(root, "a", "b")
	for _, want := range [][]string{{filepath.Dir(dir), dir}, nil} {
		if made, err := shareddir.Make(dir, 0o750); err != nil || !slices.Equal(made, want) {
			t.Errorf("made %q, want %q (%v)", made, want, err)
		}
	}
	for path, want := range map[string]fs.FileMode{root: 0o700, filepath.Dir(dir): 0o755, dir: 0o750} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode().Perm(), want, err)
		}
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "b")} {
		if _, err := shareddir.Make(dir, 0o755); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
