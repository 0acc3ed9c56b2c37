package connlimit

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Structures of inet_diag(7): linux/sock_diag.h and linux/inet_diag.h.
const (
	sockDiagByFamily = 20
	requestLen       = 56 // inet_diag_req_v2
	answerLen        = 72 // inet_diag_msg
	attributeCgroup  = 21 // INET_DIAG_CGROUP_ID, since Linux 5.9
	stateListen      = 10 // TCP_LISTEN
)

// An owner is the owner of a local TCP socket.
type owner struct {
	uid    uint32
	inode  uint32 // 0: no process has it any longer
	cgroup uint64 // 0: unknown
}

// ownerOf returns the owner of the local socket at one end of a connection. It fails if this network namespace has no such socket.
func ownerOf(local, remote netip.AddrPort) (owner, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return owner{}, err
	}
	defer unix.Close(fd)
	// The kernel answers within the send; the timeout is for a kernel that does not.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}); err != nil {
		return owner{}, err
	}
	if err := unix.Sendto(fd, question(local, remote), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return owner{}, err
	}
	buffer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, buffer, 0)
	if err != nil {
		return owner{}, err
	}
	messages, err := syscall.ParseNetlinkMessage(buffer[:n])
	if err != nil {
		return owner{}, err
	}
	for _, m := range messages {
		if m.Header.Type == sockDiagByFamily {
			return parseOwner(m.Data)
		}
	}
	return owner{}, errors.New("no such socket")
}

// question encodes the request for one socket.
func question(local, remote netip.AddrPort) []byte {
	b := make([]byte, unix.NLMSG_HDRLEN+requestLen)
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	r := b[unix.NLMSG_HDRLEN:]
	r[0], r[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		r[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(r[4:], ^uint32(0)) // in whatever state
	binary.BigEndian.PutUint16(r[8:], local.Port())
	binary.BigEndian.PutUint16(r[10:], remote.Port())
	copy(r[12:], local.Addr().AsSlice())
	copy(r[28:], remote.Addr().AsSlice())
	for i := 48; i < requestLen; i++ {
		r[i] = 0xff // INET_DIAG_NOCOOKIE
	}
	return b
}

// parseOwner decodes the answer.
func parseOwner(b []byte) (owner, error) {
	if len(b) < answerLen {
		return owner{}, errors.New("short answer")
	}
	if b[1] == stateListen {
		return owner{}, errors.New("no such connection") // a listener at the port: the client is elsewhere
	}
	o := owner{uid: binary.NativeEndian.Uint32(b[64:]), inode: binary.NativeEndian.Uint32(b[68:])}
	for b = b[answerLen:]; len(b) >= unix.SizeofNlAttr; {
		length, kind := int(binary.NativeEndian.Uint16(b)), binary.NativeEndian.Uint16(b[2:])
		if length < unix.SizeofNlAttr || length > len(b) {
			break
		}
		if kind == attributeCgroup && length >= unix.SizeofNlAttr+8 {
			o.cgroup = binary.NativeEndian.Uint64(b[unix.SizeofNlAttr:])
		}
		b = b[min((length+3)&^3, len(b)):]
	}
	return o, nil
}
