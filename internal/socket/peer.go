package socket

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Peer gives the process at the other end of a connection over a unix socket: the one that has dialled or, for whoever has
// dialled, the one that listens.
func Peer(conn net.Conn) (pid int32, err error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("%T is no connection over a unix socket", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var who *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { who, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, failed); err != nil {
		return 0, err
	}
	return who.Pid, nil
}
