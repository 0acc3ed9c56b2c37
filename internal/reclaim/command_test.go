package reclaim

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
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
	limit := time.After(20 * time.Second)
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
