package socket

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Peer returns the process that dialled a connection over a unix socket or, on the dialling side, the process that listens.
func Peer(conn net.Conn) (pid int32, err error) {
	who, err := PeerCredentials(conn)
	return who.Pid, err
}

// PeerCredentials returns the process at the other end with its user and group, as they were when it dialled or listened.
func PeerCredentials(conn net.Conn) (unix.Ucred, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return unix.Ucred{}, fmt.Errorf("%T is no connection over a unix socket", conn)
	}
	return peer(c)
}

func peer(c syscall.Conn) (unix.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return unix.Ucred{}, err
	}
	return *who, nil
}
