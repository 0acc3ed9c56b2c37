package units_test

import (
	"bufio"
	"fmt"
	"maps"
	"net"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/devmgrd/devmgrd/internal/units"
)

// A systemd is a manager on a private socket. It has the states and signals of units of type oneshot.
type systemd struct {
	t      *testing.T
	socket string
	calls  chan string   // methods that have been called, with the unit
	holds  chan struct{} // a start is carried out, and answered when this is closed; nil: at once

	mu       sync.Mutex
	listener net.Listener
	conns    map[*godbus.Conn]bool
	units    map[string]*unit
	stubborn bool           // processes ignore SIGTERM
	stopping bool           // the machine shuts down
	silent   bool           // it does not say whether the machine shuts down
	lost     map[string]int // so many answers to calls of a method
	merges   bool           // it reads the first call with the end of the authentication, as sd-bus may
}

// A unit is one that is loaded.
type unit struct {
	description, active, result string
	status                      int32
	job                         uint32 // 0: none
	remains                     bool   // RemainAfterExit
	hangs                       int    // processes that hang in the kernel
}

// A process is one of a unit.
type process struct {
	Cgroup  string
	PID     uint32
	Command string
}

// hang sets the number of a unit's processes that hang in the kernel, and survive SIGKILL.
func (s *systemd) hang(name string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.units[name].hangs = n
}

// start returns a systemd that runs until the test ends.
func start(t *testing.T) *systemd {
	s := &systemd{t: t, socket: filepath.Join(t.TempDir(), "private"), calls: make(chan string, 1000), conns: map[*godbus.Conn]bool{}, units: map[string]*unit{}}
	s.listen()
	t.Cleanup(s.drop)
	return s
}

// listen has systemd take connections.
func (s *systemd) listen() {
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
}

// drop closes all connections and the socket, as systemd does when it executes itself again. The units stay.
func (s *systemd) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listener.Close()
	for c := range s.conns {
		c.Close()
		delete(s.conns, c)
	}
}

// reexecutes has systemd execute itself again.
func (s *systemd) reexecutes() {
	s.drop()
	s.listen()
}

// serve answers one connection's calls, one after the other.
func (s *systemd) serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	if !authenticates(r, c) {
		return
	}
	out, err := godbus.NewConn(c) // for what is sent
	if err != nil {
		s.t.Error(err)
		return
	}
	s.mu.Lock()
	s.conns[out] = true
	waits := s.merges // for something to arrive, before it looks at what it has read
	s.mu.Unlock()
	for {
		m, err := godbus.DecodeMessage(r)
		if err != nil {
			return
		}
		if waits {
			if _, err := r.Peek(1); err != nil {
				return
			}
			waits = false
		}
		member, _ := m.Headers[godbus.FieldMember].Value().(string)
		object, _ := m.Headers[godbus.FieldPath].Value().(godbus.ObjectPath)
		body, err := s.call(member, object, m.Body)
		reply := &godbus.Message{Type: godbus.TypeMethodReply, Body: body, Headers: map[godbus.HeaderField]godbus.Variant{godbus.FieldReplySerial: godbus.MakeVariant(m.Serial())}}
		if err != nil {
			reply.Type, reply.Body = godbus.TypeError, []any{err.Error()}
			reply.Headers[godbus.FieldErrorName] = godbus.MakeVariant("org.freedesktop.systemd1." + err.Error())
		}
		if len(reply.Body) > 0 {
			reply.Headers[godbus.FieldSignature] = godbus.MakeVariant(godbus.SignatureOf(reply.Body...))
		}
		s.mu.Lock()
		lost := s.lost[member] > 0
		if lost {
			s.lost[member]--
		}
		s.mu.Unlock()
		if !lost {
			out.Send(reply, nil)
		}
		s.calls <- strings.TrimSpace(member + " " + named(object, m.Body))
	}
}

// authenticates is the server's part of the handshake.
func authenticates(r *bufio.Reader, c net.Conn) bool {
	_, _ = r.ReadByte()
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return false
		}
		switch line = strings.TrimSpace(line); {
		case line == "AUTH":
			_, _ = c.Write([]byte("REJECTED EXTERNAL\r\n"))
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			_, _ = c.Write([]byte("OK 0123456789abcdef0123456789abcdef\r\n"))
		case line == "BEGIN":
			return true
		default:
			_, _ = c.Write([]byte("ERROR\r\n"))
		}
	}
}

// objectOf returns the path of a unit's object.
func objectOf(name string) godbus.ObjectPath {
	return godbus.ObjectPath("/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(name))
}

// named returns which unit a call is about, by its object or its first argument.
func named(object godbus.ObjectPath, args []any) string {
	if escaped, is := strings.CutPrefix(string(object), "/org/freedesktop/systemd1/unit/"); is {
		return strings.NewReplacer("_2d", "-", "_2e", ".", "_3a", ":").Replace(escaped)
	}
	if len(args) > 0 {
		name, _ := args[0].(string)
		return name
	}
	return ""
}

// call carries out a method. Its error is one of systemd's names of errors.
func (s *systemd) call(member string, object godbus.ObjectPath, args []any) (body []any, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := named(object, args)
	u := s.units[name]
	switch {
	case member == "StartTransientUnit" && u != nil:
		return nil, fmt.Errorf("UnitExists")
	case member == "StartTransientUnit":
		s.begin(name, args[2].([][]any))
		if s.holds != nil {
			s.calls <- "starting " + name
			s.mu.Unlock()
			<-s.holds
			s.mu.Lock()
		}
		return []any{godbus.ObjectPath("/org/freedesktop/systemd1/job/1")}, nil
	case member == "GetAll" && u == nil:
		u = &unit{active: "inactive"}
		fallthrough
	case member == "GetAll":
		return []any{map[string]godbus.Variant{
			"ActiveState": godbus.MakeVariant(u.active), "Result": godbus.MakeVariant(u.result), "ExecMainStatus": godbus.MakeVariant(u.status),
			"Job": godbus.MakeVariant(struct {
				ID   uint32
				Path godbus.ObjectPath
			}{u.job, "/"}),
		}}, nil
	case member == "ListUnitsByPatterns":
		return []any{s.list(args[1].([]string))}, nil
	case member == "Subscribe":
		return nil, nil
	case member == "Get" && s.silent: // SystemState
		return nil, fmt.Errorf("AccessDenied")
	case member == "Get":
		return []any{godbus.MakeVariant(map[bool]string{true: "stopping", false: "running"}[s.stopping])}, nil
	case u == nil:
		return nil, fmt.Errorf("NoSuchUnit")
	case member == "GetUnitProcesses":
		return []any{slices.Repeat([]process{{"/system.slice/" + name, 4711, "/bin/reset"}}, u.hangs)}, nil
	case member == "StopUnit":
		s.stop(name, u)
		return []any{godbus.ObjectPath("/org/freedesktop/systemd1/job/2")}, nil
	case member == "ResetFailedUnit":
		if u.active == "failed" {
			delete(s.units, name)
		}
		return nil, nil
	}
	return nil, fmt.Errorf("NotSupported")
}

// begin loads a unit with a start job, and carries the job out.
func (s *systemd) begin(name string, properties [][]any) {
	u := &unit{active: "activating", result: "success", job: 1}
	for _, p := range properties {
		switch value := p[1].(godbus.Variant).Value(); p[0] {
		case "Description":
			u.description = value.(string)
		case "RemainAfterExit":
			u.remains = value.(bool)
		}
	}
	s.units[name] = u
	s.changed(name)
}

// list returns the loaded units whose names match.
func (s *systemd) list(patterns []string) (all []dbus.UnitStatus) {
	for _, name := range slices.Sorted(maps.Keys(s.units)) {
		if matches, _ := path.Match(patterns[0], name); matches {
			u := s.units[name]
			all = append(all, dbus.UnitStatus{Name: name, Description: u.description, ActiveState: u.active, Path: objectOf(name), JobPath: "/"})
		}
	}
	return all
}

// stop carries out a stop job.
func (s *systemd) stop(name string, u *unit) {
	switch {
	case u.active == "failed":
		return
	case !s.stubborn:
		s.end(name, u, "success")
		return
	case u.active != "deactivating":
		u.active, u.job = "deactivating", 2
	}
	s.changed(name)
}

// end has a unit without a process.
func (s *systemd) end(name string, u *unit, result string) {
	job := u.job
	u.result, u.job = result, 0
	switch {
	case result != "success":
		u.active = "failed"
	case u.active == "activating" && u.remains:
		u.active = "active"
	default:
		u.active = "inactive"
		delete(s.units, name)
	}
	s.changed(name)
	if job != 0 {
		s.emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.JobRemoved", job, godbus.ObjectPath(fmt.Sprint("/org/freedesktop/systemd1/job/", job)), name,
			map[bool]string{true: "done", false: "failed"}[result == "success"])
	}
}

// changed signals that a unit's properties have changed.
func (s *systemd) changed(name string) {
	s.emit(objectOf(name), "org.freedesktop.DBus.Properties.PropertiesChanged", "org.freedesktop.systemd1.Unit", map[string]godbus.Variant{}, []string{"ActiveState"})
}

func (s *systemd) emit(object godbus.ObjectPath, name string, values ...any) {
	for c := range s.conns {
		_ = c.Emit(object, name, values...)
	}
}

// exits has the main process of a unit end with an exit code, and its other processes with it unless they ignore SIGTERM.
func (s *systemd) exits(name string, code int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.units[name]
	u.status = code
	s.end(name, u, map[bool]string{true: "success", false: "exit-code"}[code == 0])
}

// fails has a unit end otherwise.
func (s *systemd) fails(name, result string, status int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.units[name]
	u.status = status
	s.end(name, u, result)
}

// shutsDown has the machine shut down. systemd ends a unit, and its command fails.
func (s *systemd) shutsDown(name, result string, status int32) {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.fails(name, result, status)
}

// ends has a unit that is being stopped end.
func (s *systemd) ends(name string) { s.fails(name, "timeout", int32(syscall.SIGKILL)) }

// loses has systemd forget a unit, with its result.
func (s *systemd) loses(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.units, name)
	s.emit("/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.UnitRemoved", name, objectOf(name))
}

// has returns the state of a unit; empty: it is not loaded.
func (s *systemd) has(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.units[name]; u != nil {
		return u.active
	}
	return ""
}

// A run is what Run has returned, and what systemd had of the unit at that moment.
type run struct {
	units.Outcome
	err  error
	left string
}

// called waits until a method has been called.
func (s *systemd) called(want string, ended <-chan run) {
	s.t.Helper()
	for {
		select {
		case got := <-s.calls:
			if got == want {
				return
			}
		case r := <-ended:
			s.t.Fatalf("Run has returned before %q: %+v", want, r)
		}
	}
}
