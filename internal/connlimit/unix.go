package connlimit

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// pidFS is the type of the file system of pidfds: since Linux 6.9 the inode of a pidfd names its process.
const pidFS = 0x50494446

// UnixClient names the process that has dialled a unix socket. A process outside the daemon's PID namespace has no ID there: it
// is known by its pidfd where the kernel has that (Linux 6.9), and else not at all.
func UnixClient(conn net.Conn) (string, error) {
	if wrapped, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = wrapped.NetConn()
	}
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return "", fmt.Errorf("%T is not a connection over a unix socket", conn)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return "", err
	}
	var name string
	var failed error
	err = raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed != nil {
			return
		}
		if peer.Pid > 0 {
			name = "process " + strconv.Itoa(int(peer.Pid))
			return
		}
		name = processBehind(int(fd))
	})
	return name, errors.Join(err, failed)
}

// processBehind names the process at the other end of a socket by its pidfd; empty where the kernel does not.
func processBehind(socket int) string {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return ""
	}
	defer syscall.Close(fd)
	var fs unix.Statfs_t
	var file unix.Stat_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != pidFS || unix.Fstat(fd, &file) != nil {
		return ""
	}
	return "process outside, pidfd " + strconv.FormatUint(file.Ino, 10)
}
