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

// A plugin with many resources has all turns until another one wants one: that is the next.
func TestTurns_PluginWithManyCommands_DelaysOtherByOneTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns units.Turns
		var mu sync.Mutex
		var began []string
		now, most := 0, 0
		var work sync.WaitGroup
		command := func(plugin, name string) {
			work.Go(func() {
				done, err := turns.Take(t.Context(), plugin)
				if err != nil {
					t.Error(err)
					return
				}
				defer done()
				mu.Lock()
				began = append(began, name)
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(time.Second)
				mu.Lock()
				now--
				mu.Unlock()
			})
		}
		for i := range 40 {
			command("many", fmt.Sprint("many", i))
			synctest.Wait()
		}
		command("few", "few0")
		synctest.Wait()
		command("few", "few1")
		work.Wait()
		if most != 4 {
			t.Errorf("%d commands at once, want 4", most)
		}
		if at := slices.Index(began, "few1"); at > 8 {
			t.Errorf("the other plugin's second command is number %d: %q", at, began)
		}
		if len(began) != 42 || !slices.Equal(began[:4], []string{"many0", "many1", "many2", "many3"}) {
			t.Errorf("they began as %q", began)
		}
	})
}

// A command that is no longer wanted takes no turn, and one that ends frees its turn.
func TestTurns_CtxEnds_TurnIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns units.Turns
		var ends []func()
		for range 4 {
			done, err := turns.Take(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			ends = append(ends, done)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Take(ctx, "b"); err == nil {
			t.Fatal("a fifth turn")
		}
		for _, done := range ends {
			done()
		}
		for range 4 {
			if _, err := turns.Take(t.Context(), "b"); err != nil {
				t.Fatal(err)
			}
		}
	})
}
