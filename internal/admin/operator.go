package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// maxSubjectBytes bounds the names in the record of one action.
const maxSubjectBytes = 16 << 10

// record writes an operator's command and its outcome into the history and the log. The log has them also where the history
// cannot be written. A command is executed even if the history cannot record it: an operator can cordon a failing device on
// a full disk.
func (s *Server) record(ctx context.Context, verb string, subjects []string, reason string, err error) {
	a := device.Action{At: time.Now(), Verb: verb, Operator: operatorOf(ctx), Reason: reason}
	if err != nil {
		a.Err = status.Convert(err).Message()
	}
	for size := 0; len(a.Subject) < len(subjects); {
		next := subjects[len(a.Subject)]
		if size += len(next); size > maxSubjectBytes {
			break
		}
		a.Subject = append(a.Subject, next)
	}
	a.More = len(subjects) - len(a.Subject)
	fields := []any{"action", verb, "subjects", few(subjects), "uid", a.Operator.UID, "login", loginText(a.Operator.Login),
		"pid", a.Operator.PID, "program", a.Operator.Name, "reason", reason}
	if err != nil {
		s.cfg.Log.Warn("operator's action refused", append(fields, "err", a.Err)...)
	} else {
		s.cfg.Log.Info("operator's action done", fields...)
	}
	if err := s.cfg.Actions.SaveAction(a); err != nil {
		s.cfg.Log.Error("operator's action not recorded", "action", verb, "err", err)
	}
}

// few shortens a list for the log.
func few(subjects []string) []string {
	const most = 8
	var all []string
	for _, s := range subjects[:min(len(subjects), most)] {
		all = append(all, clip(s))
	}
	if more := len(subjects) - most; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}

func loginText(login *uint32) string {
	if login == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*login), 10)
}

// operatorOf returns the process that made a call.
func operatorOf(ctx context.Context) device.Operator {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return device.Operator{}
	}
	o, _ := p.AuthInfo.(operator)
	return o.Operator
}

// An operator identifies the process at the other end of a connection.
type operator struct {
	credentials.CommonAuthInfo
	device.Operator
}

// AuthType is part of credentials.AuthInfo.
func (operator) AuthType() string { return "peer credentials" }

// peerCredentials identify the process at the other end of a connection, at the handshake, while that process waits for an answer.
type peerCredentials struct{}

// ServerHandshake is part of credentials.TransportCredentials. It sends nothing.
func (peerCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	who, err := socket.PeerCredentials(conn)
	if err != nil {
		return nil, nil, err
	}
	o := device.Operator{UID: who.Uid, PID: who.Pid}
	if who.Pid > 0 {
		o.Login, o.Name = loginOf(who.Pid), nameOf(who.Pid)
	}
	return conn, operator{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, o}, nil
}

// loginOf returns the user who logged in originally; nil if there is none, or the kernel has no record.
func loginOf(pid int32) *uint32 {
	const unset = 1<<32 - 1
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/loginuid", pid))
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || n == unset {
		return nil
	}
	uid := uint32(n)
	return &uid
}

func nameOf(pid int32) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// ClientHandshake is part of credentials.TransportCredentials. Only servers use these credentials.
func (peerCredentials) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

// Info is part of credentials.TransportCredentials.
func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone is part of credentials.TransportCredentials.
func (c peerCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName is part of credentials.TransportCredentials.
func (peerCredentials) OverrideServerName(string) error { return nil }
