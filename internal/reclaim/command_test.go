package reclaim

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/units"
)

// executed runs a command as systemd does, with its code for a command that cannot be executed.
func executed(argv, env []string) units.Outcome {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	if err := cmd.Run(); err != nil {
		return units.Outcome{Code: 203}
	}
	return units.Outcome{}
}

// The kernel takes 128 KiB for a variable.
func TestCommand_NamesLongerThanAVariable_SeveralRuns(t *testing.T) {
	var ids []device.ID
	for i := range 3000 {
		ids = append(ids, device.ID(fmt.Sprintf("GPU-8f2b1c3d-0000-4000-8000-123456789abc::%04d", i)))
	}
	d := device.Departure{Pod: device.Pod{UID: "a", Namespace: "default", Name: "a"}, Assignments: []device.Assignment{{
		Container: device.Container{Pod: "a", Name: "main"}, Shares: []device.Share{{Resource: gpu, IDs: ids}},
	}}}
	var mu sync.Mutex
	var named []string
	g := start(t, &world{}, commands("/bin/true"), func(c *Config) {
		c.Units = &commandUnits{run: func(_ context.Context, _ string, argv, env []string, _ time.Duration) (units.Outcome, error) {
			mu.Lock()
			defer mu.Unlock()
			named = append(named, strings.Fields(strings.TrimPrefix(env[1], "DEVMGRD_DEVICES="))...)
			return executed(argv, env), nil
		}}
	})
	limit := time.After(time.Minute)
	for r := g.Release(d); r != nil; r = g.Release(d) {
		if r.Failed != "" {
			t.Fatal(r.Failed)
		}
		select {
		case <-g.Changed():
		case <-limit:
			t.Fatalf("the devices are not free: %+v", r)
		}
	}
	if len(named) != len(ids) {
		t.Errorf("the command was told of %d devices, want %d", len(named), len(ids))
	}
	for i := range min(len(named), len(ids)) {
		if named[i] != string(ids[i]) {
			t.Fatalf("device %d is %s, want %s", i, named[i], ids[i])
		}
	}
}

// A run that fails ends the others; one that asks for more time has all repeated.
func TestCommand_SeveralRuns_AllAreRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []device.ID
		for i := range 300 {
			ids = append(ids, device.ID(fmt.Sprintf("%0999d", i)))
		}
		w, n := &world{}, 0
		w.outcome = func(string) (units.Outcome, error) {
			n++
			if n == 2 {
				return units.Outcome{Code: 75}, nil
			}
			return units.Outcome{}, nil
		}
		g := start(t, w, commands("/reset"))
		d := gone("a", gpu)
		d.Assignments[0].Shares[0].IDs = ids
		g.Release(d)
		time.Sleep(time.Minute)
		expect(t, g, d, "free")
		if n != 5 {
			t.Errorf("%d runs, want 2 and 3", n)
		}
	})
}

func TestCommand_ManyResources_FourAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, commands("/reset"), func(c *Config) {
			c.Plugin = func(r device.ResourceName) units.Plugin { return units.Plugin{Socket: string(r[:1])} }
		})
		var all []device.Departure
		for i := range 40 {
			all = append(all, gone(device.PodUID(fmt.Sprint(i)), device.ResourceName(fmt.Sprint("junk.example/", i)), i))
			g.Release(all[i])
		}
		synctest.Wait()
		honest := gone("honest", gpu, 1)
		g.Release(honest)
		time.Sleep(2*time.Second + 500*time.Millisecond) // the second turn
		expect(t, g, honest, "free")
		time.Sleep(time.Minute)
		for _, d := range all {
			expect(t, g, d, "free")
		}
		if w.most != 4 {
			t.Errorf("%d commands at once, want 4", w.most)
		}
	})
}

func TestCommand_Outcomes(t *testing.T) {
	for name, c := range map[string]struct {
		outcomes []any // of the runs: units.Outcome or error
		want     string
		failed   bool
		runs     int
	}{
		"succeeds":           {[]any{units.Outcome{}}, "free", false, 1},
		"asks for more time": {[]any{units.Outcome{Code: 75}, units.Outcome{Code: 75}, units.Outcome{}}, "free", false, 3},
		"asks for ever":      {[]any{units.Outcome{Code: 75}}, "release.command of vendor.example/gpu asks for more time (exit code 75); see journalctl -u devmgrd-release-a::vendor.example:gpu.service", false, 0},
		"systemd is away":    {[]any{errors.New("systemd does not answer"), units.Outcome{}}, "free", false, 2},
		"fails":              {[]any{units.Outcome{Code: 3}, units.Outcome{}}, "release.command of vendor.example/gpu has failed with exit code 3; see journalctl -u devmgrd-release-a::vendor.example:gpu.service", true, 1},
		"is killed":          {[]any{units.Outcome{Signal: "killed"}}, "release.command of vendor.example/gpu was ended by signal killed; see journalctl -u devmgrd-release-a::vendor.example:gpu.service", true, 1},
		"hangs":              {[]any{units.Outcome{TimedOut: true}}, "release.command of vendor.example/gpu has not ended within release.timeout; see journalctl -u devmgrd-release-a::vendor.example:gpu.service", true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, n := &world{}, 0
				w.outcome = func(string) (units.Outcome, error) {
					one := c.outcomes[min(n, len(c.outcomes)-1)]
					n++
					if err, is := one.(error); is {
						return units.Outcome{}, err
					}
					return one.(units.Outcome), nil
				}
				g := start(t, w, commands("/usr/local/sbin/reset", "--all"))
				a := gone("a", gpu, 2, 10)
				g.Release(a)
				time.Sleep(10*time.Minute + 500*time.Millisecond)
				expect(t, g, a, c.want)
				if r := g.Release(a); (r != nil && r.Failed != "") != c.failed {
					t.Errorf("it has failed: %v, want %v", !c.failed, c.failed)
				}
				if c.runs > 0 && len(w.runs) != c.runs {
					t.Errorf("%d runs, want %d", len(w.runs), c.runs)
				}
				want := "/usr/local/sbin/reset --all DEVMGRD_RESOURCE=vendor.example/gpu DEVMGRD_DEVICES=gpu2 gpu10 DEVMGRD_NODES=/dev/nvidiactl /dev/gpu2 /dev/gpu10 DEVMGRD_POD=default/a DEVMGRD_POD_UID=a"
				if w.runs[0] != want {
					t.Errorf("run as %q, want %q", w.runs[0], want)
				}
			})
		})
	}
}

func TestCommand_SeveralPods_OneAtATimeForEachResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, commands("/reset"))
		var all []device.Departure
		for i := range 5 {
			all = append(all, gone(device.PodUID(fmt.Sprint(i)), gpu, i))
			g.Release(all[i])
		}
		time.Sleep(5500 * time.Millisecond)
		for _, d := range all {
			expect(t, g, d, "free")
		}
		if w.most != 1 || len(w.runs) != 5 {
			t.Errorf("%d runs, at most %d at one time; want 5, one at a time", len(w.runs), w.most)
		}
	})
}

// The command is for a device that no process uses any longer.
func TestCommand_AfterTheSearch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, func(c *Config) { c.Command = func(device.ResourceName) []string { return []string{"/reset"} } })
		w.opens(1, trainer)
		a := gone("a", gpu, 1)
		g.Release(a)
		time.Sleep(10 * time.Minute)
		if len(w.runs) > 0 {
			t.Error("the command has run while a process had the device open")
		}
		w.closes(1)
		time.Sleep(time.Minute + 2*time.Second)
		expect(t, g, a, "free")
		if len(w.runs) != 1 {
			t.Errorf("%d runs, want 1", len(w.runs))
		}
	})
}

func TestCommand_HasFailedBefore_IsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		g := start(t, w, commands("/reset"))
		a := gone("a", gpu, 1)
		a.Failed = "release.command has failed"
		g.Release(a)
		time.Sleep(time.Hour)
		expect(t, g, a, "release.command has failed")
		if len(w.runs) > 0 {
			t.Error("the command was run again")
		}
	})
}

func TestCommand_IDWithASpace_IsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w, commands("/reset"))
		a := gone("a", gpu, 1)
		a.Assignments[0].Shares[0].IDs[0] = "gpu 1"
		g.Release(a)
		synctest.Wait()
		expect(t, g, a, `release.command of vendor.example/gpu cannot be told of "gpu 1": it has a space or a control character`)
	})
}

// The pod may use its devices again: the command is stopped, and known to run until it has ended.
func TestForget_CommandRuns_IsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		var stopped atomic.Bool
		g := start(t, w, commands("/reset"), func(c *Config) {
			c.Units = &commandUnits{run: func(ctx context.Context, _ string, _, _ []string, _ time.Duration) (units.Outcome, error) {
				<-ctx.Done()
				time.Sleep(time.Second)
				stopped.Store(true)
				return units.Outcome{}, ctx.Err()
			}}
		})
		a := gone("a", gpu, 1)
		g.Release(a)
		synctest.Wait()
		if !g.Running("a") {
			t.Error("the command does not run")
		}
		g.Forget("a")
		synctest.Wait()
		if !g.Running("a") || stopped.Load() {
			t.Error("the command counts as ended before it has")
		}
		time.Sleep(2 * time.Second)
		if g.Running("a") || !stopped.Load() {
			t.Error("the command still runs")
		}
	})
}

// A pod has two resources. One is assigned to another pod that joins, so the proof begins afresh for the other one, while the first
// command is being stopped.
func TestForget_TwoCommandsOfAPod_RunningUntilBothHaveEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		g := start(t, w, commands("/reset"), func(c *Config) {
			c.Units = &commandUnits{run: func(_ context.Context, unit string, _, _ []string, _ time.Duration) (units.Outcome, error) {
				if strings.Contains(unit, "gpu") {
					time.Sleep(2 * time.Second)
				} else {
					time.Sleep(10 * time.Second)
				}
				return units.Outcome{}, nil
			}}
		})
		both := gone("a", gpu, 1)
		both.Assignments[0].Shares = append(both.Assignments[0].Shares, gone("a", nic, 2).Assignments[0].Shares...)
		g.Release(both)
		time.Sleep(time.Second)
		g.Forget("a")
		g.Release(gone("a", nic, 2))
		for second := range 10 {
			synctest.Wait()
			if !g.Running("a") {
				t.Errorf("no command is said to run %d s after the second one began", second)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if g.Running("a") {
			t.Error("both commands have ended, and one is said to run")
		}
	})
}

// devmgrd was killed while commands ran. They count as running until systemd has ended them.
func TestRun_CommandsOfAnEarlierProcess_AreEndedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		u := &commandUnits{run: w.run, away: time.Second, left: map[string]time.Duration{
			"devmgrd-release-a::vendor.example:gpu.service": 3 * time.Second,
			"devmgrd-release-c::vendor.example:nic.service": time.Hour, // in the kernel
		}}
		g := start(t, w, commands("/reset"), func(c *Config) { c.Units = u })
		g.Release(gone("a", gpu, 1))
		g.Release(gone("b", gpu, 2))
		g.Release(gone("d", nic, 3))
		time.Sleep(500 * time.Millisecond)
		for i, now := range []struct {
			running []int // how many commands run for a and b together, c, d
			runs    int
		}{
			{[]int{2, 1, 1}, 0}, // systemd has not answered: each pod may have a command
			{[]int{1, 1, 0}, 0},
			{[]int{1, 1, 0}, 0},
			{[]int{1, 1, 0}, 0},
			{[]int{1, 1, 0}, 1},
			{[]int{1, 1, 0}, 2},
			{[]int{0, 1, 0}, 2}, // d waits for the earlier command of its resource
		} {
			running := []int{0, 0, 0}
			for of, uids := range [][]device.PodUID{{"a", "b"}, {"c"}, {"d"}} {
				for _, uid := range uids {
					if g.Running(uid) {
						running[of]++
					}
				}
			}
			if !slices.Equal(running, now.running) {
				t.Errorf("after %d s: %d commands run, want %d", i, running, now.running)
			}
			w.mu.Lock()
			if len(w.runs) != now.runs {
				t.Errorf("after %d s: run %q, want %d", i, w.runs, now.runs)
			}
			w.mu.Unlock()
			time.Sleep(time.Second)
		}
		expect(t, g, gone("a", gpu, 1), "free")
		expect(t, g, gone("b", gpu, 2), "free")
		expect(t, g, gone("d", nic, 3), "release.command of vendor.example/nic is due")
		time.Sleep(time.Hour)
		expect(t, g, gone("d", nic, 3), "free")
		if g.Running("c") {
			t.Error("the command for c has ended")
		}
	})
}

// The name of another resource, and the UID of another pod, end or begin like those at hand.
func TestRun_CommandLeftForALongerName_DelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{outcome: func(string) (units.Outcome, error) { return units.Outcome{}, nil }}
		u := &commandUnits{run: w.run, left: map[string]time.Duration{units.Name(unitPrefix, "a-b", "evil-"+string(gpu)): time.Hour}}
		g := start(t, w, commands("/reset"), func(c *Config) { c.Units = u })
		synctest.Wait()
		if g.Running("a") || !g.Running("a-b") {
			t.Errorf("a command is said to run for pod a: %v, for pod a-b: %v", g.Running("a"), g.Running("a-b"))
		}
		g.Release(gone("a", gpu, 1))
		time.Sleep(time.Minute)
		expect(t, g, gone("a", gpu, 1), "free")
	})
}
