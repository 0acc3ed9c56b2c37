package units

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"syscall"
	"time"

	godbus "github.com/godbus/dbus/v5"

	"github.com/devmgrd/devmgrd/internal/loops"
)

// An Outcome is how a command has ended.
type Outcome struct {
	Code     int    // exit code, if the command has ended without a signal
	Signal   string // by which it ended; empty: none
	TimedOut bool
}

// A Systemd runs units. The zero value is the machine's.
type Systemd struct {
	Socket string        // of systemd's direct connections; empty: private
	Limit  time.Duration // for one answer of systemd; 0: callLimit
}

// private is the socket on which systemd takes direct connections from root, also without a D-Bus daemon.
const private = "/run/systemd/private"

// stopLimit is how long a unit's processes may take to end after SIGTERM. systemd then kills them.
const stopLimit = 5 * time.Second

// description begins the description of each unit.
const description = "command of devmgrd: "

// maxPart is the length of a part of a unit's name.
const maxPart = 100

// between separates the parts of a unit's name.
const between = "::"

// Name returns the name of a service: prefix, and a plain form of each part that distinguishes it. systemd takes 255 bytes.
func Name(prefix string, parts ...string) string {
	plains := make([]string, len(parts))
	for i, part := range parts {
		plains[i] = plain(part)
	}
	return prefix + "-" + strings.Join(plains, between) + ".service"
}

// Has reports whether part is the part of that number in a name that Name has made with prefix.
func Has(unit, prefix string, number int, part string) bool {
	parts := strings.Split(strings.TrimSuffix(strings.TrimPrefix(unit, prefix+"-"), ".service"), between)
	return number < len(parts) && parts[number] == plain(part)
}

// kept matches texts that plain keeps. Names of resources do, unless they are too long. None becomes a form with "::" or ":-".
var kept = regexp.MustCompile(`^[\w.-]+(/\w[\w.-]*)*$`)

// plain returns s with letters, digits, and - _ . : alone, and at most maxPart bytes. Different texts have different forms: a colon stands for a slash,
// and a text that loses something ends in ":-" and a hash.
func plain(s string) string {
	if len(s) <= maxPart && kept.MatchString(s) {
		return strings.ReplaceAll(s, "/", ":")
	}
	short := strings.Map(func(c rune) rune {
		if c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' {
			return c
		}
		return '-'
	}, s)
	sum := sha256.Sum256([]byte(s))
	return short[:min(len(short), maxPart-18)] + ":-" + hex.EncodeToString(sum[:8])
}

// Run runs argv as a unit of that name, whose environment has env ("NAME=value"), and returns when systemd says that the unit has
// ended. systemd ends the unit's processes after limit; Run has them ended when ctx ends. A unit of that name that an earlier process of
// devmgrd has left is ended first. An error means that the command has not run, or that its result is not known.
func (s Systemd) Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (Outcome, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	detach := context.AfterFunc(ctx, end)
	defer detach()
	c, err := s.connect(life)
	if err != nil {
		return Outcome{}, err
	}
	defer c.Close()
	if err := c.end(unit); err != nil {
		return Outcome{}, fmt.Errorf("ending an earlier %s: %w", unit, err)
	}
	if !detach() {
		return Outcome{}, ctx.Err()
	}
	// From here on the unit may exist, and is followed to its end.
	if err := c.start(unit, argv, env, limit); refused(err) {
		return Outcome{}, fmt.Errorf("systemd does not start %s: %w", unit, err)
	}
	var last state
	if err := c.follow(unit, ctx.Done(), &last); err != nil {
		if err := s.retry(life, func(c *conn) error { return c.follow(unit, ctx.Done(), &last) }); err != nil {
			return Outcome{}, err
		}
	}
	return last.outcome(unit)
}

// End has a unit stopped, and returns when systemd says that it has ended. It returns an error only when ctx ends before.
func (s Systemd) End(ctx context.Context, unit string) error {
	return s.retry(ctx, func(c *conn) error { return c.end(unit) })
}

// Left returns the units that an earlier process of devmgrd has left, of those whose names begin with prefix. A machine without systemd
// has none. It returns an error only when ctx ends before systemd answers.
func (s Systemd) Left(ctx context.Context, prefix string) (names []string, err error) {
	c, err := s.connect(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return nil, nil // no process of devmgrd has started a unit
	case err == nil:
		c.Close()
	}
	err = s.retry(ctx, func(c *conn) error {
		all, err := c.list(prefix + "-*.service")
		for _, u := range all {
			if strings.HasPrefix(u.Description, description) {
				names = append(names, u.Name)
			}
		}
		return err
	})
	return names, err
}

// retry calls f with a connection, and as long as it returns an error with another one. It returns an error only when ctx ends.
func (s Systemd) retry(ctx context.Context, f func(*conn) error) error {
	pause := loops.Backoff{First: 50 * time.Millisecond, Last: 2 * time.Second}
	for {
		c, err := s.connect(ctx)
		if err == nil {
			err = f(c)
			c.Close()
		}
		if err == nil {
			return nil
		}
		pause.Wait(ctx)
		if ctx.Err() != nil {
			return err
		}
	}
}

// outcome returns how the command of a unit has ended.
func (s state) outcome(unit string) (Outcome, error) {
	switch {
	case s.active == succeeded:
		return Outcome{}, nil
	case s.stopped:
		return Outcome{}, fmt.Errorf("%s was stopped: %w", unit, context.Canceled)
	case s.down:
		return Outcome{}, fmt.Errorf("%s was ended by the machine's shutdown", unit)
	case s.active != failed:
		return Outcome{}, fmt.Errorf("%s has ended, and systemd does not know its result", unit)
	}
	switch s.result {
	case "timeout":
		return Outcome{TimedOut: true}, nil
	case "oom-kill":
		return Outcome{Signal: "killed, for lack of memory"}, nil
	case "signal", "core-dump":
		return Outcome{Signal: syscall.Signal(s.status).String()}, nil
	case "exit-code":
		return Outcome{Code: int(s.status)}, nil
	}
	return Outcome{}, fmt.Errorf("systemd could not run %s: %s", unit, s.result)
}

// refused reports whether systemd has answered a call with an error. After other errors it may have carried the call out.
func refused(err error) bool {
	var answer godbus.Error
	return errors.As(err, &answer)
}
