// Package cri asks a container runtime through the CRI for what NRI does not show. devmgrd check uses it, and the preparation of claims.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/socket"
)

// MaxAnswer, in bytes, bounds an answer of the runtime, which may list its whole configuration.
const MaxAnswer = 16 << 20

// Sockets are the default sockets of runtimes, in the order in which the kubelet and crictl try them.
var Sockets = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"}

// Dial returns a connection to the runtime that listens on a unix socket. It does not wait for it.
func Dial(path string) (*grpc.ClientConn, error) {
	return over(func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
}

func over(dial func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///cri", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxAnswer)))
}

// CDI is a runtime's configuration of CDI. The zero value: it does not report it.
type CDI struct {
	Off  bool     // it adds no CDI devices to containers
	Dirs []string // in which it looks for CDI specifications; none: not reported, or as the release has it
}

// ReadCDI reads the configuration that containerd and CRI-O report as the info "config" of their status. CDI is always on in CRI-O.
func ReadCDI(config string) CDI {
	var c struct {
		Enable *bool                          `json:"enableCDI"` // gone in containerd 2.4
		Dirs   []string                       `json:"cdiSpecDirs"`
		CRIO   struct{ CDISpecDirs []string } `json:"crio"` // since CRI-O 1.33
	}
	if json.Unmarshal([]byte(config), &c) != nil {
		return CDI{}
	}
	return CDI{Off: c.Enable != nil && !*c.Enable, Dirs: append(c.Dirs, c.CRIO.CDISpecDirs...)}
}

// AskCDI asks the process with this PID, if it listens on one of these sockets: a node may have several runtimes. found is false if it does not. After
// an error it may answer later.
func AskCDI(ctx context.Context, sockets []string, pid int32) (got CDI, found bool, err error) {
	for _, path := range sockets {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		switch {
		case errors.Is(err, unix.EAGAIN): // it has not accepted many connections
			return CDI{}, true, err
		case err != nil:
			continue
		}
		if listens, err := socket.Peer(c); err != nil || listens != pid {
			c.Close()
			continue
		}
		got, err = ask(ctx, c)
		if err != nil {
			err = fmt.Errorf("asking the runtime at %s for its configuration: %w", path, err)
		}
		return got, true, err
	}
	return CDI{}, false, ctx.Err()
}

// ask asks the runtime at the other end of a connection, and closes it.
func ask(ctx context.Context, c net.Conn) (CDI, error) {
	defer c.Close()
	conn, err := over(func(context.Context, string) (net.Conn, error) { return c, nil }) // once: a call that is not repeated
	if err != nil {
		return CDI{}, err
	}
	defer conn.Close()
	status, err := v1.NewRuntimeServiceClient(conn).Status(ctx, &v1.StatusRequest{Verbose: true})
	if err != nil {
		return CDI{}, err
	}
	return ReadCDI(status.GetInfo()["config"]), nil
}

// Fault returns why the runtime does not add the CDI devices whose files are in dir, and the remedy; empty: no reason is known.
func (c CDI) Fault(dir string) (why, remedy string) {
	same := func(of string) bool {
		a, failed := os.Stat(of)
		b, err := os.Stat(dir)
		return err == nil && failed == nil && os.SameFile(a, b) || real(of) == real(dir)
	}
	switch {
	case c.Off:
		return "CDI is off in the runtime's configuration",
			`set enable_cdi = true in [plugins.'io.containerd.cri.v1.runtime'] (containerd 1: [plugins."io.containerd.grpc.v1.cri"]), and restart containerd`
	case len(c.Dirs) > 0 && !slices.ContainsFunc(c.Dirs, same):
		return fmt.Sprintf("the runtime looks for CDI specifications in %s, and devmgrd writes those of claims in %s (dra.cdiDir)", strings.Join(c.Dirs, " and "), dir),
			"set dra.cdiDir to one of these that is in memory, such as /var/run/cdi, or add it to cdi_spec_dirs and restart the runtime"
	}
	return "", ""
}

// real returns a directory's path without links, also if the directory is not there yet.
func real(dir string) string {
	dir = filepath.Clean(dir)
	path, err := filepath.EvalSymlinks(dir)
	switch {
	case err == nil:
		return path
	case filepath.Dir(dir) == dir:
		return dir
	}
	return filepath.Join(real(filepath.Dir(dir)), filepath.Base(dir))
}
