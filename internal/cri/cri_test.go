package cri_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/cri"
)

// Configurations as containerd 1.7.35, 2.3 and 2.4.2 report them, and CRI-O 1.33 and before.
func TestReadCDI(t *testing.T) {
	for config, want := range map[string]cri.CDI{
		`{"enableCDI":false,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}`: {Off: true, Dirs: []string{"/etc/cdi", "/var/run/cdi"}},
		`{"enableCDI":true,"cdiSpecDirs":["/etc/cdi"]}`:                 {Dirs: []string{"/etc/cdi"}},
		`{"cdiSpecDirs":["/etc/cdi"]}`:                                  {Dirs: []string{"/etc/cdi"}},
		`{"crio":{"CDISpecDirs":["/etc/cdi"]},"sandboxImage":"pause"}`:  {Dirs: []string{"/etc/cdi"}},
		`{"sandboxImage":"pause"}`:                                      {},
		`{"enableCDI":"no"}`:                                            {},
		"":                                                              {},
	} {
		if got := cri.ReadCDI(config); got.Off != want.Off || !slices.Equal(got.Dirs, want.Dirs) {
			t.Errorf("%s: %+v, want %+v", config, got, want)
		}
	}
}

func TestFault(t *testing.T) {
	top := t.TempDir()
	dir, link := filepath.Join(top, "run", "cdi"), filepath.Join(top, "var-run")
	if err := os.Mkdir(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Dir(dir), link); err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		for _, c := range []struct {
			cri.CDI
			want string // in the remedy
		}{
			{cri.CDI{Off: true, Dirs: []string{dir}}, "enable_cdi = true"},
			{cri.CDI{Dirs: []string{"/etc/cdi"}}, "cdi_spec_dirs"},
			{cri.CDI{Dirs: []string{"/etc/cdi", dir}}, ""},
			{cri.CDI{Dirs: []string{filepath.Join(link, "cdi")}}, ""},
			{cri.CDI{Dirs: []string{}}, ""}, // the default directories in containerd 2.4, and none before: then it creates no container
			{cri.CDI{}, ""},
		} {
			if why, remedy := c.Fault(dir + "/"); (why == "") != (c.want == "") || !strings.Contains(remedy, c.want) {
				t.Errorf("%+v: %q, %q, want %q", c.CDI, why, remedy, c.want)
			}
		}
	}
	check() // before the directory is there
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(link, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Dir(dir), link, "", unix.MS_BIND, ""); err != nil {
		t.Logf("a directory that is mounted at two places is not tested: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := unix.Unmount(link, 0); err != nil {
			t.Error(err)
		}
	})
	check()
}

// A runtime's CRI answers once it is initialized.
type runtime struct {
	v1.UnimplementedRuntimeServiceServer
	ready atomic.Bool
}

func (r *runtime) Status(_ context.Context, request *v1.StatusRequest) (*v1.StatusResponse, error) {
	if !r.ready.Load() {
		return nil, status.Error(codes.Unavailable, "server is not initialized yet")
	}
	if !request.Verbose {
		return &v1.StatusResponse{}, nil
	}
	return &v1.StatusResponse{Info: map[string]string{"config": `{"enableCDI":false}`}}, nil
}

func TestAskCDI(t *testing.T) {
	path, pid := filepath.Join(t.TempDir(), "cri.sock"), int32(os.Getpid())
	sockets := []string{path + ".none", path}
	wants := func(what string, pid int32, found bool, failure string) cri.CDI {
		t.Helper()
		got, there, err := cri.AskCDI(t.Context(), sockets, pid)
		if there != found || (err == nil) != (failure == "") || failure != "" && !strings.Contains(err.Error(), failure) {
			t.Errorf("%s: found %v, %v", what, there, err)
		}
		return got
	}
	wants("there is no socket", pid, false, "")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	silent, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, found, err := cri.AskCDI(silent, sockets, pid); err == nil || !found {
		t.Errorf("a runtime that does not answer: found %v, %v", found, err)
	}
	r := &runtime{}
	s := grpc.NewServer()
	v1.RegisterRuntimeServiceServer(s, r)
	go s.Serve(listener)
	t.Cleanup(s.Stop)
	wants("it is being started", pid, true, "not initialized yet")
	wants("another process listens", 1, false, "")
	full, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(full) })
	if err := errors.Join(unix.Bind(full, &unix.SockaddrUnix{Name: path + ".none"}), unix.Listen(full, 0)); err != nil {
		t.Fatal(err)
	}
	if c, err := net.Dial("unix", path+".none"); err != nil {
		t.Fatal(err)
	} else {
		t.Cleanup(func() { c.Close() })
	}
	wants("a runtime accepts no connection", pid, true, "temporarily unavailable")
	if err := os.Remove(path + ".none"); err != nil {
		t.Fatal(err)
	}
	r.ready.Store(true)
	if got := wants("it answers", pid, true, ""); !got.Off {
		t.Errorf("%+v", got)
	}
}
