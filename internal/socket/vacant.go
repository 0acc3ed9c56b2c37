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

	"github.com/devmgrd/devmgrd/internal/shareddir"
)

// Vacant returns nil if name may be taken: nothing is there, a socket on which no process listens, or something else than a
// socket, which is then returned: Listen replaces it, and the caller warns of that. A link there is not followed. A *TakenError
// says which process has the name.
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
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := e.Dial(ctx)
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

// VacantPath is Vacant for a path in a directory that no other user writes. What is there and is no socket is an error: it is
// another program's file, or the configuration names the wrong path.
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

// A TakenError reports that another process listens at a path. Its text ends in what can be done there, so that " or ..." may
// follow.
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

// listenerOf names the process at the other end: the one that called listen.
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

// Listens reports whether a process accepts connections at a unix socket. It does not follow a link.
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
