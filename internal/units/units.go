// Package units runs commands as transient units of systemd: each in a control group of its own, with its output in the journal, and
// stopped with all its processes when its time is over. They run with the rights of a system service, and outside of devmgrd's sandbox.
package units

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// An Outcome is how a command has ended.
type Outcome struct {
	Code     int    // exit code, if the command has ended without a signal
	Signal   string // by which it ended; empty: none
	TimedOut bool
}

// stopping is how long a unit may take to end after its time is over. systemd kills it after stopLimit.
const (
	stopLimit = 5 * time.Second
	stopping  = 10 * time.Second
)

// Name returns the name of a service: prefix, and a plain form of what distinguishes it. systemd takes 255 bytes.
func Name(prefix string, parts ...string) string {
	name := prefix
	for _, part := range parts {
		name += "-" + plain(part, 100)
	}
	return name + ".service"
}

// plain returns s with nothing but letters, digits, - and _, and at most most bytes. A text that has lost something ends in a hash.
func plain(s string, most int) string {
	short := strings.Map(func(c rune) rune {
		if c < 0x80 && (c == '-' || c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z') {
			return c
		}
		return '-'
	}, s)
	if len(short) <= most {
		return short
	}
	sum := sha256.Sum256([]byte(s))
	return short[:most-17] + "-" + hex.EncodeToString(sum[:8])
}

// Run runs argv as a unit of that name, whose environment has env ("NAME=value"), and waits for its end. The unit's processes are ended
// after limit, or when ctx ends. An error means that the unit was not run to its end: systemd does not answer, or has such a unit already.
func Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (Outcome, error) {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, limit+stopping)
	defer cancel()
	systemd, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return Outcome{}, fmt.Errorf("systemd does not answer: %w", err)
	}
	defer systemd.Close()
	jobs := make(chan string, 1)
	words := slices.Clone(argv)
	for i := range words {
		words[i] = strings.ReplaceAll(words[i], "$", "$$") // systemd would replace variables
	}
	if state, err := systemd.GetUnitPropertyContext(ctx, unit, "ActiveState"); err == nil && state.Value.Value() == "failed" {
		_ = systemd.ResetFailedUnitContext(ctx, unit) // a run that devmgrd has not seen the end of
	}
	_, err = systemd.StartTransientUnitContext(ctx, unit, "fail", []dbus.Property{
		dbus.PropDescription("command of devmgrd: " + argv[0]),
		dbus.PropType("oneshot"),
		dbus.PropExecStart(words, false),
		{Name: "Environment", Value: godbus.MakeVariant(env)},
		{Name: "TimeoutStartUSec", Value: godbus.MakeVariant(uint64(limit.Microseconds()))},
		{Name: "TimeoutStopUSec", Value: godbus.MakeVariant(uint64(stopLimit.Microseconds()))},
		{Name: "KillMode", Value: godbus.MakeVariant("control-group")},
		{Name: "DefaultDependencies", Value: godbus.MakeVariant(true)},
	}, jobs)
	if err != nil {
		return Outcome{}, fmt.Errorf("systemd does not start %s: %w", unit, err)
	}
	select {
	case result := <-jobs:
		if result == "done" {
			return Outcome{}, nil
		}
	case <-ctx.Done():
		stop(unit)
		if caller.Err() == nil {
			return Outcome{TimedOut: true}, nil
		}
		return Outcome{}, fmt.Errorf("waiting for %s: %w", unit, ctx.Err())
	}
	return failure(ctx, systemd, unit)
}

// failure returns how a unit has failed, and has systemd forget it.
func failure(ctx context.Context, systemd *dbus.Conn, unit string) (Outcome, error) {
	properties, err := systemd.GetUnitTypePropertiesContext(ctx, unit, "Service")
	if err != nil {
		return Outcome{}, fmt.Errorf("asking systemd about %s: %w", unit, err)
	}
	_ = systemd.ResetFailedUnitContext(ctx, unit)
	result, _ := properties["Result"].(string)
	status, _ := properties["ExecMainStatus"].(int32)
	switch result {
	case "timeout":
		return Outcome{TimedOut: true}, nil
	case "oom-kill":
		return Outcome{Signal: "killed, for lack of memory"}, nil
	case "signal", "core-dump":
		return Outcome{Signal: syscall.Signal(status).String()}, nil
	case "exit-code":
		return Outcome{Code: int(status)}, nil
	}
	return Outcome{}, fmt.Errorf("systemd could not run %s: %s", unit, result)
}

// stop ends a unit that is no longer waited for.
func stop(unit string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	systemd, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return
	}
	defer systemd.Close()
	_, _ = systemd.StopUnitContext(ctx, unit, "replace", nil)
}
