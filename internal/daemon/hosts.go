package daemon

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// hosts are the host names that requests to metrics.listen may use, besides IP addresses and localhost.
//
// A foreign page, open in a browser on the node or at the end of a tunnel, can have its own name resolve to 127.0.0.1 and
// then read the answers as its own (DNS rebinding). The page cannot choose the Host header, which holds its name.
type hosts []string

// guard refuses requests for foreign host names, and keeps browsers from guessing the type of an answer.
func (h hosts) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		if !overUnix(r) && !h.has(r.Host) {
			http.Error(w, fmt.Sprintf("devmgrd answers here to an IP address, to localhost and to %s; the request names another host. "+
				"Use one of those, or add the name to metrics.hostNames.", strings.Join(h, ", ")), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// has reports whether a Host header names this node. The port may be a tunnel's. Browsers always send a Host header.
func (h hosts) has(host string) bool {
	if host == "" {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return strings.EqualFold(host, "localhost") || slices.ContainsFunc(h, func(name string) bool { return strings.EqualFold(host, name) })
}

// overUnix reports whether a request came over a unix socket, which no browser dials.
func overUnix(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}
