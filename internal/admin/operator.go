package admin

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
)

// record writes an operator's command and its outcome into the history and the log. The log has them also where the history
// cannot be written. A command is executed even if the history cannot record it: an operator can cordon a failing device on
// a full disk.
func (s *Server) record(ctx context.Context, verb string, subjects []string, reason string, err error) {
	a := device.Action{At: time.Now(), Verb: verb, Operator: peercreds.Of[device.Operator](ctx), Reason: reason}
	if err != nil {
		a.Err = status.Convert(err).Message()
	}
	a.On(subjects)
	fields := []any{"action", verb, "subjects", lists.First(lists.Map(subjects, device.Clip), 8), "uid", a.Operator.UID, "login", loginText(a.Operator.Login),
		"pid", a.Operator.PID, "program", a.Operator.Name, "reason", reason}
	if err != nil {
		s.cfg.Log.Warn("operator's action refused", append(fields, "err", a.Err)...)
	} else {
		s.cfg.Log.Info("operator's action done", fields...)
	}
	if err := s.cfg.Actions.SaveActions(a); err != nil {
		s.cfg.Log.Error("operator's action not recorded", "action", verb, "err", err)
	}
}

func loginText(login *uint32) string {
	if login == nil {
		return ""
	}
	return strconv.FormatUint(uint64(*login), 10)
}

// identify returns the process at the other end of a connection: at the handshake, while that process waits for an answer.
func identify(conn net.Conn) (net.Conn, device.Operator, error) {
	who, err := socket.PeerCredentials(conn)
	o := device.Operator{UID: who.Uid, PID: who.Pid}
	if who.Pid > 0 {
		o.Login, o.Name = loginOf(who.Pid), nameOf(who.Pid)
	}
	return conn, o, err
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
