package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// Vacant returns nil if a server may take the name: it does not exist, is a socket without a listener, or is a file of another
// type, which Vacant returns: Listen replaces it, and the caller logs that. It follows no link. It fails with a *TakenError if a
// process listens.
func Vacant(d *shareddir.Dir, name string) (stray fs.FileInfo, err error) {
	e, err := d.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer e.Close()
	if !e.IsSocket() {
		return e.Info(), nil
	}
	conn, err := e.Dial(context.Background()) // never waits: the kernel answers at once, also if the listener's queue is full
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil // left behind
	case errors.Is(err, syscall.EPROTOTYPE):
		return e.Info(), nil // for datagrams: no server of ours or the kubelet's
	case errors.Is(err, syscall.EAGAIN):
		return nil, &TakenError{Path: e.Path()}
	case err != nil:
		return nil, err
	}
	defer conn.Close()
	return nil, &TakenError{Path: e.Path(), By: listenerOf(conn)}
}

// VacantPath is Vacant for a path in a directory that only root writes. It fails for a file that is not a socket: another program
// owns it, or the configuration names a wrong path.
func VacantPath(path string) error {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return err
	}
	defer d.Close()
	stray, err := Vacant(d, name)
	if err == nil && stray != nil {
		return fmt.Errorf("%s is a %s, not a socket; remove it", path, shareddir.TypeName(stray.Mode()))
	}
	return err
}

// A TakenError reports that another process listens at a path. Its text ends with a remedy, so that " or ..." may follow.
type TakenError struct {
	Path string
	By   string // which process: a name and a pid; empty if it does not answer
}

func (e *TakenError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("a process listens on %s and does not answer; stop it", e.Path)
	}
	return fmt.Sprintf("%s listens on %s already; stop it", e.By, e.Path)
}

// listenerOf names the process that listens at the other end.
func listenerOf(conn *net.UnixConn) string {
	pid, err := Peer(conn)
	if err != nil {
		return "another process"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil { // gone or hidden: the pid has to do
		name = []byte("another process")
	}
	return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(name)), pid)
}

// Listens reports whether a process accepts connections at a unix socket. It follows no link.
func Listens(path string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := Dial(ctx, path)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
