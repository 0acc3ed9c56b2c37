package units_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/units"
)

// A turnTaker runs commands of a second, in a synctest bubble.
type turnTaker struct {
	*testing.T
	turns     units.Turns
	work      sync.WaitGroup
	mu        sync.Mutex
	began     []string // names of commands
	now, most int
}

// command has a command run, after those that have come before.
func (t *turnTaker) command(plugin units.Plugin, name string) {
	synctest.Wait()
	t.work.Go(func() {
		done, err := t.turns.Take(t.Context(), plugin, time.Minute)
		if err != nil {
			t.Error(err)
			return
		}
		defer done()
		t.mu.Lock()
		t.began = append(t.began, name)
		t.now++
		t.most = max(t.most, t.now)
		t.mu.Unlock()
		time.Sleep(time.Second)
		t.mu.Lock()
		t.now--
		t.mu.Unlock()
	})
}

// A plugin with many resources has all turns until another one wants one: that is the next.
func TestTurns_PluginWithManyCommands_DelaysOtherByOneTurn(t *testing.T) {
	for name, c := range map[string]struct {
		many func(i int) units.Plugin
		few  units.Plugin
	}{
		"two pods":                     {func(int) units.Plugin { return units.Plugin{Pod: "many"} }, units.Plugin{Pod: "few"}},
		"pod with many sockets":        {func(i int) units.Plugin { return units.Plugin{Pod: "many", Socket: fmt.Sprint(i)} }, units.Plugin{Pod: "few"}},
		"common, with many sockets":    {func(i int) units.Plugin { return units.Plugin{Socket: fmt.Sprint(i)} }, units.Plugin{Pod: "few"}},
		"both of the common directory": {func(int) units.Plugin { return units.Plugin{Socket: "many"} }, units.Plugin{Socket: "few"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				taker := &turnTaker{T: t}
				for i := range 40 {
					taker.command(c.many(i), fmt.Sprint("many", i))
				}
				taker.command(c.few, "few0")
				taker.command(c.few, "few1")
				taker.work.Wait()
				if taker.most != 4 {
					t.Errorf("%d commands at once, want 4", taker.most)
				}
				if at := slices.Index(taker.began, "few1"); at > 8 {
					t.Errorf("the other plugin's second command is number %d: %q", at, taker.began)
				}
				if len(taker.began) != 42 || !slices.Equal(taker.began[:4], []string{"many0", "many1", "many2", "many3"}) {
					t.Errorf("they began as %q", taker.began)
				}
			})
		})
	}
}

// A command that is no longer wanted takes no turn, and one that ends frees its turn.
func TestTurns_CtxEnds_TurnIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns units.Turns
		var ends []func()
		for range 4 {
			done, err := turns.Take(t.Context(), units.Plugin{Pod: "a"}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, done)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Take(ctx, units.Plugin{Pod: "b"}, time.Minute); err == nil {
			t.Fatal("a fifth turn")
		}
		for _, done := range ends {
			done()
		}
		for range 4 {
			if _, err := turns.Take(t.Context(), units.Plugin{Pod: "b"}, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Commands that hang in the kernel, and have been killed, leave their turns to others.
func TestTurns_CommandsHang_TurnsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns units.Turns
		var ends []func()
		for range 4 {
			done, err := turns.Take(t.Context(), units.Plugin{Pod: "hung"}, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, done)
		}
		began := time.Now()
		for i := range 5 {
			if i == 4 { // they do not end twice
				for _, done := range ends {
					done()
				}
			}
			if _, err := turns.Take(t.Context(), units.Plugin{Pod: "b"}, time.Minute); err != nil {
				t.Fatal(err)
			}
			if waited := time.Since(began); (i < 4) != (waited < 2*time.Minute) {
				t.Errorf("turn %d begins after %v", i, waited)
			}
		}
	})
}
