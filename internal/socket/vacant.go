package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

// Vacant gives nil if path may be taken: nothing is there, or a socket that somebody has left behind. A *TakenError says
// who has it.
func Vacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return &TakenError{Path: path}
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil // left behind
	case errors.Is(err, syscall.EAGAIN):
		return &TakenError{Path: path, Live: true}
	case err != nil:
		return err
	}
	defer conn.Close()
	return &TakenError{Path: path, Live: true, By: listenerOf(conn.(*net.UnixConn))}
}

// A TakenError says why a path cannot be taken. Its text ends in what can be done there, so that " or ..." may follow.
type TakenError struct {
	Path string
	Live bool   // somebody listens there; else it is no socket
	By   string // who listens: a name and a pid; empty if they do not answer
}

func (e *TakenError) Error() string {
	switch {
	case !e.Live:
		return e.Path + " is there and is not a socket; remove it"
	case e.By == "":
		return fmt.Sprintf("somebody listens on %s and does not answer; stop them", e.Path)
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
