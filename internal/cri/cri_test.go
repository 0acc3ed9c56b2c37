package cri_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/cri"
)

// Configurations as containerd 1.7.35, 2.3 and 2.4.2 report them, and none, as CRI-O.
func TestReadCDI(t *testing.T) {
	for config, want := range map[string]cri.CDI{
		`{"enableCDI":false,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"]}`: {Off: true, Dirs: []string{"/etc/cdi", "/var/run/cdi"}},
		`{"enableCDI":true,"cdiSpecDirs":["/etc/cdi"]}`:                 {Dirs: []string{"/etc/cdi"}},
		`{"cdiSpecDirs":["/etc/cdi"]}`:                                  {Dirs: []string{"/etc/cdi"}},
		`{"enableCDI":"no"}`:                                            {},
		"":                                                              {},
	} {
		if got := cri.ReadCDI(config); got.Off != want.Off || !slices.Equal(got.Dirs, want.Dirs) {
			t.Errorf("%s: %+v, want %+v", config, got, want)
		}
	}
}

func TestFault(t *testing.T) {
	dir, link := t.TempDir(), filepath.Join(t.TempDir(), "cdi")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]cri.CDI{
		"enable_cdi = true": {Off: true, Dirs: []string{dir}},
		"cdi_spec_dirs":     {Dirs: []string{"/etc/cdi"}},
		"":                  {Dirs: []string{"/etc/cdi", link}},
	} {
		if why, remedy := c.Fault(dir + "/"); (why == "") != (want == "") || !strings.Contains(remedy, want) {
			t.Errorf("%+v: %q, %q, want %q", c, why, remedy, want)
		}
	}
	if why, _ := (cri.CDI{}).Fault(dir); why != "" {
		t.Errorf("a runtime that reports nothing: %s", why)
	}
}

type runtime struct {
	v1.UnimplementedRuntimeServiceServer
}

func (runtime) Status(_ context.Context, r *v1.StatusRequest) (*v1.StatusResponse, error) {
	if !r.Verbose {
		return &v1.StatusResponse{}, nil
	}
	return &v1.StatusResponse{Info: map[string]string{"config": `{"enableCDI":false}`}}, nil
}

func TestAskCDI(t *testing.T) {
	path, pid := filepath.Join(t.TempDir(), "cri.sock"), int32(os.Getpid())
	if _, err := cri.AskCDI(t.Context(), path, pid); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a runtime that is not there: %v", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	silent, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := cri.AskCDI(silent, path, pid); err == nil {
		t.Error("a runtime that does not answer has answered")
	}
	s := grpc.NewServer()
	v1.RegisterRuntimeServiceServer(s, runtime{})
	go s.Serve(listener)
	t.Cleanup(s.Stop)
	if got, err := cri.AskCDI(t.Context(), path, pid); err != nil || !got.Off {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cri.AskCDI(t.Context(), path, 1); err == nil || !strings.Contains(err.Error(), "and not process 1") {
		t.Errorf("another process than the runtime: %v", err)
	}
}
