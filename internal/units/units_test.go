package units_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/units"
)

const reset = "devmgrd-release-a-gpu.service"

// runs runs a command in the background.
func (s *systemd) runs(ctx context.Context) <-chan run {
	ended := make(chan run, 1)
	go func() {
		got, err := units.Systemd{Socket: s.socket}.Run(ctx, reset, []string{"/bin/reset"}, []string{"A=b"}, time.Minute)
		ended <- run{got, err, s.has(reset)}
	}()
	return ended
}

func TestName(t *testing.T) {
	if got := units.Name("devmgrd-release", "1-a", "vendor.example/gpu"); got != "devmgrd-release-1-a::vendor.example:gpu.service" {
		t.Error(got)
	}
	long := units.Name("devmgrd-release", strings.Repeat("u", 200)+"/", strings.Repeat("r", 300))
	if len(long) > 255 || strings.Contains(long, "/") || long == units.Name("devmgrd-release", strings.Repeat("u", 200)+"/", strings.Repeat("r", 301)) {
		t.Error(long)
	}
}

// Resources whose names differ in one of . / - : and others are apart.
func TestName_ResourcesThatDifferInPunctuation_DifferentUnits(t *testing.T) {
	seen := map[string]string{}
	for _, r := range []string{"vendor.example/gpu", "vendor-example/gpu", "vendor.example-gpu", "vendor/example.gpu", "vendor.example:gpu", "vendor.example gpu", "vendor.example_gpu"} {
		name := units.Name("devmgrd-health", r)
		if other := seen[name]; other != "" {
			t.Errorf("%s and %s are both %s", other, r, name)
		}
		seen[name] = r
	}
}

// A resource whose name is the short form of a longer one is apart from it.
func TestName_ResourceNamedAfterALongName_DifferentUnits(t *testing.T) {
	long := "accelerators.platform.infrastructure.example.com/" + strings.Repeat("a", 60)
	unit := units.Name("devmgrd-health", long)
	form := strings.TrimSuffix(strings.TrimPrefix(unit, "devmgrd-health-"), ".service")
	for _, other := range []string{form, strings.ReplaceAll(form, ":", "/"), strings.Replace(form, ":", "/", 1)} {
		if other != long && units.Name("devmgrd-health", other) == unit {
			t.Errorf("%s and %s are both %s", long, other, unit)
		}
	}
}

// Texts around the separators of a name's parts do not move from one part to the next.
func TestHas_SeparatorsInParts_ComparesWholeParts(t *testing.T) {
	for _, parts := range [][]string{{"a", "b/c"}, {"a:", "b"}, {"a/", "/b"}, {"a::b", "c"}, {"", "a"}, {"a-", ":b:"}} {
		unit := units.Name("devmgrd-release", parts...)
		for number := range 3 {
			for _, part := range []string{"a", "b", "c", "b/c", "a/", "/b", "a:", "a-", ":b:", "a::b", ""} {
				if want := number < len(parts) && parts[number] == part; units.Has(unit, "devmgrd-release", number, part) != want {
					t.Errorf("%s has %q as its part %d: want %v", unit, part, number, want)
				}
			}
		}
	}
}

func TestRun_Results(t *testing.T) {
	for name, c := range map[string]struct {
		ends func(*systemd)
		want units.Outcome
		err  string
	}{
		"exit code 0":  {func(s *systemd) { s.exits(reset, 0) }, units.Outcome{}, ""},
		"exit code 75": {func(s *systemd) { s.exits(reset, 75) }, units.Outcome{Code: 75}, ""},
		"signal":       {func(s *systemd) { s.fails(reset, "signal", 11) }, units.Outcome{Signal: "segmentation fault"}, ""},
		"core dump":    {func(s *systemd) { s.fails(reset, "core-dump", 6) }, units.Outcome{Signal: "aborted"}, ""},
		"no memory":    {func(s *systemd) { s.fails(reset, "oom-kill", 9) }, units.Outcome{Signal: "killed, for lack of memory"}, ""},
		"time limit":   {func(s *systemd) { s.fails(reset, "timeout", 9) }, units.Outcome{TimedOut: true}, ""},
		// At a shutdown systemd ends commands before devmgrd, which has to wait for the kubelet.
		"shutdown":       {func(s *systemd) { s.shutsDown(reset, "signal", 15) }, units.Outcome{}, reset + " was ended by the machine's shutdown"},
		"shutdown code":  {func(s *systemd) { s.shutsDown(reset, "exit-code", 1) }, units.Outcome{}, reset + " was ended by the machine's shutdown"},
		"shutdown limit": {func(s *systemd) { s.shutsDown(reset, "timeout", 9) }, units.Outcome{}, reset + " was ended by the machine's shutdown"},
		"no state": {func(s *systemd) {
			s.mu.Lock()
			s.silent = true
			s.mu.Unlock()
			s.exits(reset, 3)
		}, units.Outcome{Code: 3}, ""},
		"no cgroup": {func(s *systemd) { s.fails(reset, "resources", 0) }, units.Outcome{}, "systemd could not run " + reset + ": resources"},
		"forgotten": {func(s *systemd) { s.loses(reset) }, units.Outcome{}, reset + " has ended, and systemd does not know its result"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			ended := s.runs(t.Context())
			s.called("StartTransientUnit "+reset, ended)
			c.ends(s)
			got := <-ended
			if got.Outcome != c.want || (got.err == nil) != (c.err == "") || got.err != nil && got.err.Error() != c.err {
				t.Errorf("got %+v, %v", got.Outcome, got.err)
			}
			if got.left != "" {
				t.Errorf("the unit is still loaded, and %s", got.left)
			}
		})
	}
}

func TestRun_NoSystemd_Error(t *testing.T) {
	if got, err := (units.Systemd{Socket: t.TempDir() + "/private"}).Run(t.Context(), reset, []string{"/bin/reset"}, nil, time.Minute); err == nil || got != (units.Outcome{}) {
		t.Errorf("%+v, %v", got, err)
	}
}

// The command ignores SIGTERM: the unit's processes live on while systemd stops it.
func TestRun_Cancelled_ReturnsWhenTheUnitHasEnded(t *testing.T) {
	s := start(t)
	s.stubborn = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := s.runs(ctx)
	s.called("StartTransientUnit "+reset, ended)
	cancel()
	s.called("StopUnit "+reset, ended)
	s.called("GetAll "+reset, ended) // it still looks
	s.ends(reset)
	if got := <-ended; !errors.Is(got.err, context.Canceled) || got.TimedOut || got.left != "" {
		t.Errorf("%+v", got)
	}
}

// The pod is back at the moment at which systemd starts the command, and has not answered yet.
func TestRun_CancelledWhileTheUnitStarts_UnitIsStopped(t *testing.T) {
	for name, answers := range map[string]bool{"answer comes late": true, "answer is lost": false} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.stubborn, s.holds = true, make(chan struct{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := s.runs(ctx)
			s.called("starting "+reset, ended)
			cancel()
			if !answers {
				s.reexecutes()
			}
			close(s.holds)
			s.called("StopUnit "+reset, ended)
			s.ends(reset)
			if got := <-ended; !errors.Is(got.err, context.Canceled) || got.left != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// An upgrade of systemd's package has systemd execute itself again. The unit runs on.
func TestRun_SystemdReexecutes_ResultIsRead(t *testing.T) {
	for name, code := range map[string]int32{"success": 0, "failure": 3} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			ended := s.runs(t.Context())
			s.called("StartTransientUnit "+reset, ended)
			s.reexecutes()
			s.called("GetAll "+reset, ended) // over another connection, while the command runs
			s.drop()
			s.exits(reset, code) // no connection sees it
			s.listen()
			if got := <-ended; got.err != nil || got.Outcome != (units.Outcome{Code: int(code)}) || got.left != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestRun_SystemdReexecutesAndForgetsTheUnit_Error(t *testing.T) {
	s := start(t)
	ended := s.runs(t.Context())
	s.called("StartTransientUnit "+reset, ended)
	s.drop()
	s.loses(reset)
	s.listen()
	if got := <-ended; got.err == nil || got.TimedOut {
		t.Errorf("%+v", got)
	}
}

// The connection is lost between the stop and its end. Systemd is asked again where the unit runs on.
func TestRun_SystemdReexecutesDuringTheStop_ReturnsWhenTheUnitHasEnded(t *testing.T) {
	s := start(t)
	s.stubborn = true
	ctx, cancel := context.WithCancel(t.Context())
	ended := s.runs(ctx)
	s.called("StartTransientUnit "+reset, ended)
	s.drop()
	cancel()
	s.listen()
	s.called("StopUnit "+reset, ended)
	s.mu.Lock()
	s.units[reset].active, s.units[reset].job = "activating", 0 // the stop was lost
	s.mu.Unlock()
	s.reexecutes()
	s.called("StopUnit "+reset, ended)
	s.ends(reset)
	if got := <-ended; !errors.Is(got.err, context.Canceled) || got.left != "" {
		t.Errorf("%+v", got)
	}
}

// The command has succeeded and has left a process in the background.
func TestRun_SuccessWithAProcessLeft_ReturnsWhenItHasEnded(t *testing.T) {
	s := start(t)
	s.stubborn = true
	ended := s.runs(t.Context())
	s.called("StartTransientUnit "+reset, ended)
	s.exits(reset, 0)
	s.called("StopUnit "+reset, ended)
	s.ends(reset)
	if got := <-ended; got.err != nil || got.Outcome != (units.Outcome{}) || got.left != "" {
		t.Errorf("%+v", got)
	}
}

// A process of the command hangs in the kernel. systemd says some seconds after SIGKILL that the unit has failed.
func TestRun_ProcessHangsInTheKernel_ReturnsWhenItHasEnded(t *testing.T) {
	for name, cancelled := range map[string]bool{"after success": false, "after the pod's return": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			s.stubborn = true
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := s.runs(ctx)
			s.called("StartTransientUnit "+reset, ended)
			s.hang(reset, 1)
			if cancelled {
				cancel()
			} else {
				s.exits(reset, 0)
			}
			s.called("StopUnit "+reset, ended)
			s.ends(reset)
			for range 2 {
				s.called("GetUnitProcesses "+reset, ended)
			}
			s.hang(reset, 0)
			if got := <-ended; got.Outcome != (units.Outcome{}) || errors.Is(got.err, context.Canceled) != cancelled || got.left != "" {
				t.Errorf("%+v", got)
			}
		})
	}
}

// devmgrd was killed while the command ran, or before it had read the result.
func TestRun_UnitOfAnEarlierProcess_IsEndedFirst(t *testing.T) {
	for _, state := range []string{"activating", "active", "failed"} {
		t.Run(state, func(t *testing.T) {
			s := start(t)
			s.stubborn = state == "activating"
			s.units[reset] = &unit{description: "command of devmgrd: /bin/reset", active: state, result: "success", remains: true}
			ended := s.runs(t.Context())
			if s.stubborn {
				s.called("StopUnit "+reset, ended)
				s.ends(reset)
			}
			s.called("StartTransientUnit "+reset, ended)
			s.mu.Lock()
			s.stubborn = false
			s.mu.Unlock()
			s.exits(reset, 75)
			if got := <-ended; got.err != nil || got.Code != 75 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestLeft_CommandsOfDevmgrdOnly(t *testing.T) {
	s := start(t)
	machine := units.Systemd{Socket: s.socket}
	s.units[reset] = &unit{description: "command of devmgrd: /bin/reset", active: "activating", remains: true}
	s.units["devmgrd-health-gpu.service"] = &unit{description: "command of devmgrd: /bin/examine", active: "activating"}
	s.units["devmgrd-release-notes.service"] = &unit{description: "an operator's service", active: "active"}
	if left, err := machine.Left(t.Context(), "devmgrd-release"); err != nil || !slices.Equal(left, []string{reset}) {
		t.Errorf("%q, %v", left, err)
	}
	if err := machine.End(t.Context(), reset); err != nil || s.has(reset) != "" {
		t.Errorf("%v, the unit is %s", err, s.has(reset))
	}
	if err := machine.End(t.Context(), "devmgrd-release-gone.service"); err != nil {
		t.Error(err)
	}
	if left, err := (units.Systemd{Socket: s.socket + "x"}).Left(t.Context(), "devmgrd-release"); err != nil || len(left) > 0 {
		t.Errorf("a machine without systemd: %q, %v", left, err)
	}
}

// An answer of systemd does not arrive: it is asked again, over another connection.
func TestAnswerIsLost_SystemdIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Subscribe", "ListUnitsByPatterns", "GetAll", "StopUnit"} {
		s := start(t)
		s.lost = map[string]int{method: 2}
		machine := units.Systemd{Socket: s.socket, Limit: 50 * time.Millisecond}
		s.units[reset] = &unit{description: "command of devmgrd: /bin/reset", active: "activating", remains: true}
		if left, err := machine.Left(t.Context(), "devmgrd-release"); err != nil || !slices.Equal(left, []string{reset}) {
			t.Errorf("%s: %q, %v", method, left, err)
		}
		if err := machine.End(t.Context(), reset); err != nil || s.has(reset) != "" {
			t.Errorf("%s: %v, the unit is %s", method, err, s.has(reset))
		}
	}
}

// systemd reads the first call with the end of the authentication, and does not look at it until more arrives.
func TestFirstCall_ReadWithTheAuthentication_IsAnswered(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.merges = true
	s.units[reset] = &unit{description: "command of devmgrd: /bin/reset", active: "activating", remains: true}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // less than the limit of a call
	defer cancel()
	if left, err := (units.Systemd{Socket: s.socket}).Left(ctx, "devmgrd-release"); err != nil || !slices.Equal(left, []string{reset}) {
		t.Errorf("%q, %v", left, err)
	}
}

// devmgrd ends while systemd ends a unit.
func TestEnd_CtxEnds_Error(t *testing.T) {
	s := start(t)
	s.stubborn = true
	s.units[reset] = &unit{active: "activating"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- units.Systemd{Socket: s.socket}.End(ctx, reset) }()
	s.called("StopUnit "+reset, nil)
	cancel()
	if err := <-ended; err == nil {
		t.Error("the unit counts as ended")
	}
}
