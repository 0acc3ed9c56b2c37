package connlimit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/cgroups"
	"github.com/devmgrd/devmgrd/internal/device"
)

// pidFS is the type of the file system of pidfds: since Linux 6.9 the inode of a pidfd names its process.
const pidFS = 0x50494446

const (
	endedClient = "processes that have ended"
	podPrefix   = "pod "
)

// IsPod reports whether UnixClient has named a client of a pod, or one that may be.
func IsPod(client string) bool {
	return client == endedClient || strings.HasPrefix(client, podPrefix)
}

// HasEnded reports whether UnixClient has named a process that has ended.
func HasEnded(client string) bool { return client == endedClient }

// PodClient returns the name of a pod as a client.
func PodClient(pod device.PodUID) string { return podPrefix + string(pod) }

// PodOf returns the pod that PodClient has named.
func PodOf(client string) (device.PodUID, bool) {
	uid, is := strings.CutPrefix(client, podPrefix)
	return device.PodUID(uid), is
}

// UnixClient names the client of a unix socket: the pod of the process, since processes of a container may fork, or else the
// process. All processes that have ended are one client, since other processes may use their connections. A process outside the
// daemon's PID namespace has no ID there: its pidfd names it from Linux 6.9 on, and nothing before.
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
			if name = processOf(int(peer.Pid)); peerHasEnded(int(fd)) {
				name = endedClient // another process may have its ID
			}
			return
		}
		name = processBehind(int(fd))
	})
	return name, errors.Join(err, failed)
}

// processOf names a process, or its pod.
func processOf(pid int) string {
	all, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return endedClient
	}
	if pod := podOf(string(all)); pod != "" {
		return PodClient(pod)
	}
	if leaderHasEnded(pid) {
		return endedClient
	}
	return "process " + strconv.Itoa(pid)
}

// leaderHasEnded reports whether the first thread of a process has ended. Others may go on, and the kernel shows such a process outside of its cgroups of version 1.
func leaderHasEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	after := bytes.LastIndexByte(stat, ')') // of the command, which may have any characters
	return err != nil || after+2 >= len(stat) || bytes.IndexByte([]byte("ZX"), stat[after+2]) >= 0
}

// podOf returns the UID of the pod in a /proc/PID/cgroup, or an empty one.
func podOf(all string) device.PodUID {
	for line := range strings.Lines(all) {
		_, path, _ := strings.Cut(line, ":")
		_, path, _ = strings.Cut(path, ":")
		if pod := cgroups.PodOf(strings.TrimSuffix(path, "\n")); pod != "" {
			return pod
		}
	}
	return ""
}

// processBehind names the process at the other end of a socket by its pidfd; empty if the kernel has none.
func processBehind(socket int) string {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return ""
	}
	defer syscall.Close(fd)
	var system unix.Statfs_t
	var file unix.Stat_t
	if unix.Fstatfs(fd, &system) != nil || system.Type != pidFS || unix.Fstat(fd, &file) != nil {
		return ""
	}
	return "process outside, pidfd " + strconv.FormatUint(file.Ino, 10)
}

// peerHasEnded reports whether the process at the other end of a socket has ended, from Linux 6.5 on.
func peerHasEnded(socket int) bool {
	fd, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if err != nil {
		return err != unix.ENOPROTOOPT // there is no pidfd of a process that has been waited for
	}
	defer syscall.Close(fd)
	ready, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && ready > 0
}
