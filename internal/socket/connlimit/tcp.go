package connlimit

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

var errGone = errors.New("the client has closed the connection already")

// TCPClient names the client of a TCP connection. On the same host and in the same network namespace that is the user of the other
// socket: every local user can use all addresses of 127.0.0.0/8. Processes of root are distinguished by cgroup, since containers in
// the host's network may run as root; other users could create cgroups. For other hosts it is the IPv4 address, or the first 64
// bits of the IPv6 address.
func TCPClient(conn net.Conn) (string, error) {
	theirs, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return "", err
	}
	ours, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return "", err
	}
	theirs = netip.AddrPortFrom(theirs.Addr().Unmap(), theirs.Port())
	ours = netip.AddrPortFrom(ours.Addr().Unmap(), ours.Port())
	owner, err := ownerOf(theirs, ours)
	switch {
	case err != nil: // not of this network namespace, or the kernel does not say
		return network(theirs.Addr()), nil
	case owner.inode == 0: // no process has it: its user cannot be known
		return "", errGone
	case owner.uid == 0:
		return fmt.Sprintf("root, cgroup %d", owner.cgroup), nil
	}
	return fmt.Sprintf("user %d", owner.uid), nil
}

// network returns the part of an address that belongs to one client.
func network(a netip.Addr) string {
	if a.Is4() {
		return a.String()
	}
	prefix, err := a.WithZone("").Prefix(64)
	if err != nil {
		return a.String()
	}
	return prefix.String()
}
