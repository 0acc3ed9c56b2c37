package store_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Check reports a full disk until it is no longer full.
func TestCheck_FailingWrites_AreReported(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if err := s.Check(); err != nil {
		t.Fatalf("at first: %v", err)
	}
	large := pod("large")
	large.Assignments[0].Shares[0].Grant.Env["X"] = strings.Repeat("x", 1<<20)
	s.LimitSize(64 << 10)
	if err := s.SavePods([]device.PodRecord{large}, nil); err == nil {
		t.Fatal("the disk is not full")
	}
	if err := s.Check(); err == nil || !strings.Contains(err.Error(), "writing the state file") {
		t.Errorf("after a failure: %v", err)
	}
	s.LimitSize(0)
	if err := s.SavePods([]device.PodRecord{large}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Check(); err != nil {
		t.Errorf("after a success: %v", err)
	}
	if pods, err := s.Pods(); err != nil || !reflect.DeepEqual(pods, []device.PodRecord{large}) {
		t.Errorf("Pods() = %d records, %v", len(pods), err)
	}
}

// A file that is removed or replaced takes nothing more, even of what is in it already, and the message says how to
// put it back.
func TestStateFileIsRemovedOrReplaced(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do   func(path string) error
		want string
	}{
		"removed": {os.Remove, "was removed"},
		"replaced": {func(path string) error {
			return errors.Join(os.WriteFile(path+".other", nil, 0o600), os.Rename(path+".other", path))
		}, "was replaced"},
		"its directory": {func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") }, "was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			path := filepath.Join(dir, "state.db")
			s := open(t, dir)
			plugin := device.PluginRecord{Resource: "a.com/x", Endpoint: "x.sock"}
			if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.SavePlugin(plugin), s.Check()); err != nil {
				t.Fatal(err)
			}
			if err := test.do(path); err != nil {
				t.Fatal(err)
			}
			for what, err := range map[string]error{
				"SavePods":                s.SavePods([]device.PodRecord{pod("b")}, nil),
				"SavePods of a saved pod": s.SavePods([]device.PodRecord{pod("a")}, nil),
				"SavePods of a deletion":  s.SavePods(nil, []device.PodUID{"a"}),
				"SavePlugin":              s.SavePlugin(device.PluginRecord{Resource: "a.com/y", Endpoint: "y.sock"}),
				"Check":                   s.Check(),
			} {
				if stray := new(store.StrayError); !errors.As(err, &stray) || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%s: %v", what, err)
				}
			}
			stray := new(store.StrayError)
			if !errors.As(s.Check(), &stray) || !strings.Contains(stray.Error(), fmt.Sprintf("cp /proc/%d/fd/%d %s", stray.PID, stray.FD, path)) {
				t.Fatal("the message does not say how to put it back")
			}
			data, err := os.ReadFile(fmt.Sprintf("/proc/%d/fd/%d", stray.PID, stray.FD))
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Close(), os.MkdirAll(dir, 0o700), os.WriteFile(path, data, 0o600)); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir)
			if pods, err := s.Pods(); err != nil || !reflect.DeepEqual(pods, []device.PodRecord{pod("a")}) {
				t.Errorf("after that: %+v, %v", pods, err)
			}
			if err := s.SavePods([]device.PodRecord{pod("b")}, nil); err != nil || s.Check() != nil {
				t.Errorf("after that: %v, %v", err, s.Check())
			}
		})
	}
}

// A state file that was moved away and back is in use again.
func TestStateFileIsBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, path := open(t, dir), filepath.Join(dir, "state.db")
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if s.SavePods([]device.PodRecord{pod("a")}, nil) == nil || s.Check() == nil {
		t.Error("it is not missed")
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.SavePods([]device.PodRecord{pod("a")}, nil), s.Check()); err != nil {
		t.Error(err)
	}
}
