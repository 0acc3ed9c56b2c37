// Package cri asks a container runtime through the CRI for what NRI does not show. devmgrd check uses it, and the preparation of claims.
package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/devmgrd/devmgrd/internal/socket"
)

// MaxAnswer, in bytes, bounds an answer of the runtime, which may list its whole configuration.
const MaxAnswer = 16 << 20

// Dial returns a connection to the runtime that listens on a unix socket. It does not wait for it.
func Dial(path string) (*grpc.ClientConn, error) {
	return dial(func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	})
}

func dial(by func(context.Context, string) (net.Conn, error)) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///cri", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(by), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxAnswer)))
}

// CDI is a runtime's configuration of CDI. The zero value: it does not report it, as CRI-O.
type CDI struct {
	Off  bool     // it adds no CDI devices to containers
	Dirs []string // in which it looks for CDI specifications; nil: not reported
}

// ReadCDI reads the configuration that containerd reports as the info "config" of its status.
func ReadCDI(config string) CDI {
	var c struct {
		Enable *bool    `json:"enableCDI"` // gone in containerd 2.4
		Dirs   []string `json:"cdiSpecDirs"`
	}
	if json.Unmarshal([]byte(config), &c) != nil {
		return CDI{}
	}
	return CDI{Off: c.Enable != nil && !*c.Enable, Dirs: c.Dirs}
}

// AskCDI asks the process with this PID, if it listens on a unix socket: a node may have several runtimes.
func AskCDI(ctx context.Context, path string, pid int32) (CDI, error) {
	conn, err := dial(func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return nil, err
		}
		if listens, err := socket.Peer(c); err != nil || listens != pid {
			c.Close()
			return nil, errors.Join(err, fmt.Errorf("process %d listens at %s, and not process %d", listens, path, pid))
		}
		return c, nil
	})
	if err != nil {
		return CDI{}, err
	}
	defer conn.Close()
	status, err := v1.NewRuntimeServiceClient(conn).Status(ctx, &v1.StatusRequest{Verbose: true})
	if err != nil {
		return CDI{}, fmt.Errorf("asking the runtime at %s for its configuration: %w", path, err)
	}
	return ReadCDI(status.GetInfo()["config"]), nil
}

// Fault returns why the runtime does not add the CDI devices whose files are in dir, and the remedy; empty: no reason is known.
func (c CDI) Fault(dir string) (why, remedy string) {
	switch same := func(of string) bool { return real(of) == real(dir) }; {
	case c.Off:
		return "CDI is off in the runtime's configuration",
			`set enable_cdi = true in [plugins.'io.containerd.cri.v1.runtime'] (containerd 1: [plugins."io.containerd.grpc.v1.cri"]), and restart containerd`
	case c.Dirs != nil && !slices.ContainsFunc(c.Dirs, same):
		return fmt.Sprintf("the runtime looks for CDI specifications in %s, and devmgrd writes those of claims in %s (dra.cdiDir)", strings.Join(c.Dirs, " and "), dir),
			"set dra.cdiDir to one of these that is in memory, such as /var/run/cdi, or add it to cdi_spec_dirs"
	}
	return "", ""
}

// real returns a directory's path without links.
func real(dir string) string {
	if path, err := filepath.EvalSymlinks(dir); err == nil {
		return path
	}
	return filepath.Clean(dir)
}
