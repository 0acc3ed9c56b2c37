package units

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"

	"github.com/devmgrd/devmgrd/internal/loops"
)

// A conn is a connection to systemd. go-systemd's own does not report its end.
type conn struct {
	*godbus.Conn
	signals chan *godbus.Signal // closed when the connection has ended
	limit   time.Duration       // of one call
}

// errLost is the end of a connection.
var errLost = errors.New("the connection to systemd has ended")

// connect returns a connection to systemd that lasts until ctx ends, or systemd or the caller closes it.
func (s Systemd) connect(ctx context.Context) (*conn, error) {
	c := &conn{signals: make(chan *godbus.Signal, 64), limit: cmp.Or(s.Limit, callLimit)}
	var err error
	c.Conn, err = godbus.Dial("unix:path="+cmp.Or(s.Socket, private), godbus.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("systemd does not answer: %w", err)
	}
	c.Signal(c.signals) // before the connection is read: none is missed, nor is its end
	late := time.AfterFunc(c.limit, func() { c.Close() })
	defer late.Stop()
	if err = c.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err == nil {
		err = c.subscribe()
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("systemd does not answer: %w", err)
	}
	return c, nil
}

// subscribe calls for signals. systemd may read this first call together with the end of the authentication, and then does not look at the call
// until more arrives: pings arrive until systemd has answered.
func (c *conn) subscribe() error {
	pause := loops.Backoff{First: 100 * time.Millisecond, Last: 2 * time.Second}
	manager := c.Object(destination, managerPath)
	call := manager.GoWithContext(context.Background(), "org.freedesktop.systemd1.Manager.Subscribe", 0, nil)
	for {
		select {
		case <-call.Done:
			return call.Err
		case <-time.After(pause.Next()):
			manager.GoWithContext(context.Background(), "org.freedesktop.DBus.Peer.Ping", godbus.FlagNoReplyExpected, nil)
		}
	}
}

// callLimit is how long systemd may take to answer. It is busy while the machine boots. An answer may be lost.
const callLimit = 30 * time.Second

// call calls a method of one of systemd's objects. The call ends with its answer, after its limit, or with the connection.
func (c *conn) call(object godbus.ObjectPath, method string, args ...any) *godbus.Call {
	ctx, cancel := context.WithTimeout(context.Background(), c.limit)
	defer cancel()
	return c.Object(destination, object).CallWithContext(ctx, method, 0, args...)
}

// manager calls a method of systemd's manager.
func (c *conn) manager(method string, args ...any) *godbus.Call {
	return c.call(managerPath, "org.freedesktop.systemd1.Manager."+method, args...)
}

const (
	destination = "org.freedesktop.systemd1"
	managerPath = "/org/freedesktop/systemd1"
)

// start has systemd start a unit.
func (c *conn) start(unit string, argv, env []string, limit time.Duration) error {
	words := slices.Clone(argv)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "$", "$$") // systemd would replace variables
	}
	return c.manager("StartTransientUnit", unit, "fail", []dbus.Property{
		dbus.PropDescription(description + argv[0]),
		dbus.PropType("oneshot"),
		dbus.PropRemainAfterExit(true),
		dbus.PropExecStart(words, false),
		{Name: "Environment", Value: godbus.MakeVariant(env)},
		{Name: "TimeoutStartUSec", Value: godbus.MakeVariant(uint64(limit.Microseconds()))}, // RuntimeMaxSec has no effect on type oneshot
		{Name: "TimeoutStopUSec", Value: godbus.MakeVariant(uint64(stopLimit.Microseconds()))},
		{Name: "KillMode", Value: godbus.MakeVariant("control-group")},
		{Name: "DefaultDependencies", Value: godbus.MakeVariant(true)},
	}, []dbus.PropertyCollection{}).Err
}

// list returns the loaded units whose names match a pattern.
func (c *conn) list(pattern string) (all []dbus.UnitStatus, err error) {
	return all, c.manager("ListUnitsByPatterns", []string{}, []string{pattern}).Store(&all)
}

// Some of systemd's states of a unit; see the package's comment.
const (
	succeeded = "active"
	ending    = "deactivating"
	failed    = "failed"
	inactive  = "inactive"
)

// A state is what systemd says of a unit.
type state struct {
	active  string
	result  string
	status  int32
	job     bool // it has a job: a start or a stop that has not ended
	stopped bool // it was stopped for another reason than its success
	down    bool // it has failed while the machine shut down
}

// state asks for the state of a unit. One that systemd has forgotten is inactive.
func (c *conn) state(unit string) (s state, err error) {
	var all map[string]godbus.Variant
	err = c.call(path(unit), "org.freedesktop.DBus.Properties.GetAll", "").Store(&all) // "": of all interfaces
	switch {
	case unknown(err):
		return state{active: inactive}, nil
	case err != nil:
		return state{}, err
	}
	s.active, _ = all["ActiveState"].Value().(string)
	s.result, _ = all["Result"].Value().(string)
	s.status, _ = all["ExecMainStatus"].Value().(int32)
	job, _ := all["Job"].Value().([]any)
	s.job = len(job) > 0 && job[0] != uint32(0)
	return s, nil
}

// shutsDown reports whether the machine shuts down, or reboots: systemd ends all units then. A systemd that does not say so counts as running.
func (c *conn) shutsDown() (bool, error) {
	var now string
	err := c.call(managerPath, "org.freedesktop.DBus.Properties.Get", "org.freedesktop.systemd1.Manager", "SystemState").Store(&now)
	if refused(err) {
		return false, nil
	}
	return now == "stopping", err
}

// ended reports whether systemd has nothing more to do with the unit, and will not start a process of it.
func (s state) ended() bool { return (s.active == inactive || s.active == failed) && !s.job }

// processPause is the time between two looks at the processes of a unit that has ended without them. systemd signals nothing of them.
const processPause = time.Second

// processes returns the number of a unit's processes. A process that hangs in the kernel survives SIGKILL: systemd says after a while that its unit has
// failed.
func (c *conn) processes(unit string) (int, error) {
	var all []struct {
		Cgroup  string
		PID     uint32
		Command string
	}
	err := c.manager("GetUnitProcesses", unit).Store(&all)
	if unknown(err) {
		return 0, nil
	}
	return len(all), err
}

// rest waits, and fails when the connection has ended.
func (c *conn) rest(pause time.Duration) error {
	end := time.After(pause)
	for {
		select {
		case _, open := <-c.signals:
			if !open {
				return errLost
			}
		case <-end:
			return nil
		}
	}
}

// path returns the name of a unit's object.
func path(unit string) godbus.ObjectPath {
	return godbus.ObjectPath("/org/freedesktop/systemd1/unit/" + dbus.PathBusEscape(unit))
}

// end has a unit stopped, and returns when it has ended.
func (c *conn) end(unit string) error {
	now := make(chan struct{})
	close(now)
	return c.follow(unit, now, &state{})
}

// follow waits until systemd says that a unit has ended. It has the unit stopped when stop is closed, and when the command has succeeded.
// last becomes the latest state that has the command's result. An error means that the connection has ended, or that systemd cannot answer.
func (c *conn) follow(unit string, stop <-chan struct{}, last *state) error {
	for asked := false; ; {
		now, err := c.state(unit)
		if err != nil {
			return err
		}
		if last.active != succeeded {
			now.stopped = last.stopped
			*last = now
		}
		if now.ended() {
			left, err := c.processes(unit)
			if err != nil {
				return err
			}
			if left > 0 {
				if err := c.rest(processPause); err != nil {
					return err
				}
				continue
			}
			if now.active == failed {
				last.down, err = c.shutsDown()
				if err != nil {
					return err
				}
				_ = c.manager("ResetFailedUnit", unit).Err // systemd forgets it; if this fails, the next Run does it
			}
			return nil
		}
		select {
		case <-stop:
			last.stopped, stop = true, nil
		default:
		}
		stops := last.stopped || last.active == succeeded
		if stops && now.active != ending && !(asked && now.job) { // asked, and no job: another job has replaced the stop
			switch err := c.manager("StopUnit", unit, "replace").Err; {
			case unknown(err):
				return nil
			case err != nil:
				return err
			}
			asked = true
		}
		if err := c.changed(unit, stop); err != nil {
			return err
		}
	}
}

// unknown reports whether systemd has answered that it has no such unit.
func unknown(err error) bool {
	var answer godbus.Error
	return errors.As(err, &answer) && (answer.Name == "org.freedesktop.systemd1.NoSuchUnit" || answer.Name == "org.freedesktop.DBus.Error.UnknownObject")
}

// changed returns when systemd reports a change of a unit, or when stop is closed.
func (c *conn) changed(unit string, stop <-chan struct{}) error {
	for {
		select {
		case signal, open := <-c.signals:
			if !open {
				return errLost
			}
			if signal.Path == path(unit) || slices.ContainsFunc(signal.Body, func(arg any) bool { name, _ := arg.(string); return name == unit }) {
				return nil
			}
		case <-stop:
			return nil
		}
	}
}
