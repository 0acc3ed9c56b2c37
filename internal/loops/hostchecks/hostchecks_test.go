package hostchecks

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func newChecks() *Checks { return New(slog.New(slog.DiscardHandler)) }

// over returns a context that has ended.
func over(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// hang begins checks that never answer, until the test ends, and returns how many could be begun.
func hang(t *testing.T, c *Checks, sources int) (begun int) {
	t.Helper()
	block := make(chan struct{})
	t.Cleanup(func() { close(block) })
	for i := range sources {
		_, err := Do(over(t), c, "device", fmt.Sprintf("/hung/%s/%d", c.owner, i), func() (int, error) { <-block; return 0, nil })
		if silent := new(SilentError); !errors.As(err, &silent) {
			t.Fatal(err)
		}
		if strings.Contains(err.Error(), "does not answer") {
			begun++
		}
	}
	return begun
}

// wantNothingLeft fails if a check is under way or in line.
func wantNothingLeft(t *testing.T, c *Checks) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.underway > 0 || len(c.checks) > 0 || len(c.owners) > 0 {
		t.Errorf("%d checks of %d owners are left, %d under way", len(c.checks), len(c.owners), c.underway)
	}
}

func nothing() (int, error) { return 0, nil }

func TestDo_SameSource_IsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, answer, asked := newChecks(), make(chan string), 0
		ask := func(ctx context.Context) (string, error) {
			return Do(ctx, c, MountSource, "/x", func() (string, error) { asked++; return <-answer, nil })
		}
		for range 3 {
			if _, err := ask(over(t)); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "mount source /x") {
				t.Errorf("%v, want that time is over", err)
			}
		}
		for i, want := range []string{"found", "again"} { // what was found is not remembered
			go func() {
				synctest.Wait() // until all wait for the answer
				answer <- want
			}()
			if found, err := ask(t.Context()); found != want || err != nil || asked != i+1 {
				t.Errorf("%q, %v after %d questions", found, err, asked)
			}
		}
	})
}

func TestDo_Panic_IsAnError(t *testing.T) {
	t.Parallel()
	c := newChecks()
	if _, err := Do(t.Context(), c, "device", "/x", func() (int, error) { panic("oh") }); err == nil || !strings.Contains(err.Error(), "internal error: oh") {
		t.Errorf("%v, want the panic", err)
	}
	wantNothingLeft(t, c)
}

// An answer that comes too late for a hook each time serves the next hook.
func TestForHook_SourceIsSlowEachTime_NextHookHasTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecks()
		try := func(c *Checks) error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			_, err := Do(ctx, c, MountSource, "/slow", func() (int, error) { time.Sleep(700 * time.Millisecond); return 1, nil })
			return err
		}
		if try(c.ForHook("ns")) == nil {
			t.Error("it has answered early")
		}
		time.Sleep(10 * time.Second)
		if err := try(c.ForHook("ns")); err != nil {
			t.Error(err)
		}
		if try(c.ForHook("ns")) == nil {
			t.Error("an answer counts twice")
		}
		time.Sleep(time.Minute)
		if try(c.ForHook("ns")) == nil {
			t.Error("an answer counts after a minute")
		}
		time.Sleep(time.Second) // the last check ends
	})
}

// A hook does not wait for a source that is known to hang.
func TestForHook_SourceIsKnownToHang_DoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecks()
		answer := make(chan struct{})
		ask := func(c *Checks, limit time.Duration) (time.Duration, error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			_, err := Do(ctx, c, "device", "/x", func() (int, error) { <-answer; return 0, nil })
			return time.Since(began), err
		}
		for i, want := range []time.Duration{time.Second, 0, 0} {
			if took, err := ask(c.ForHook("ns"), time.Second); took != want || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("attempt %d took %v: %v", i, took, err)
			}
		}
		close(answer)
	})
}

// Sources of many owners do not answer. Those of another one are checked, up to the limit of all.
func TestChecks_ManyOwnersHang_OthersAreMade(t *testing.T) {
	c := newChecks()
	sum := 0
	for i := range 50 {
		begun := hang(t, c.ForHook(fmt.Sprint("evil", i)), maxChecks)
		if begun > maxChecks/ownShare || i > 0 && begun < 1 {
			t.Errorf("%d checks of owner %d", begun, i)
		}
		sum += begun
	}
	if _, err := Do(t.Context(), c.ForHook("ns"), "device", "/dev/null", nothing); err != nil {
		t.Errorf("with %d checks of others: %v", sum, err)
	}
	for i := range maxChecks - sum {
		hang(t, c.ForHook(fmt.Sprint("ns", i)), 1)
	}
	_, err := Do(t.Context(), c.ForHook("ns"), "device", "/dev/null", nothing)
	if err == nil || !strings.Contains(err.Error(), "device /dev/null cannot be checked: 128 other checks") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want that there are too many", err)
	}
}

// More checks are made for an owner than it may have at once: each waits for its turn, and those of another owner do not.
func TestFor_OwnerHasTooMany_WaitInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newChecks()
		c, ended := all.For("a.com/x"), make(chan error)
		for i := range 3 * maxChecks {
			go func() {
				_, err := Do(t.Context(), c, "device", fmt.Sprint(i), func() (int, error) { time.Sleep(time.Second); return 0, nil })
				ended <- err
			}()
		}
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := Do(short, all.For("b.com/y"), "device", "/dev/null", nothing); err != nil {
			t.Error(err)
		}
		_, err := Do(short, c, "device", "/dev/null", nothing)
		if err == nil || !strings.Contains(err.Error(), "7 other checks of the host's files have not ended") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want that it was in line", err)
		}
		for range 3 * maxChecks {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		wantNothingLeft(t, all)
	})
}

// An answer of one type does not serve a caller that wants another one, and what is opened for one caller in line serves the next one.
func TestDo_SameWordsForAnotherAnswer_AreAnotherQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecks()
		go Do(t.Context(), c, "device", "/x", func() (int, error) { time.Sleep(time.Second); return 1, nil })
		synctest.Wait()
		if got, err := Do(t.Context(), c, "device", "/x", func() (string, error) { return "a", nil }); got != "a" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		time.Sleep(time.Second)
	})
}

// A caller that waits for another one's turn gets its own when that one leaves the line.
func TestOpen_OtherCallerLeavesTheLine_NextOneTakesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecks().For("a.com/x")
		for i := range maxChecks / ownShare {
			go Do(t.Context(), c, "device", fmt.Sprint(i), func() (int, error) { time.Sleep(time.Hour); return 0, nil })
		}
		synctest.Wait()
		var closed atomic.Int32
		open := func(ctx context.Context) error {
			_, err := Open(ctx, c, "socket", "/x", func() (opened, error) { return opened{&closed}, nil })
			return err
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { first <- open(short) }()
		synctest.Wait()
		go func() { second <- open(t.Context()) }()
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := <-second; err != nil || closed.Load() > 0 {
			t.Errorf("%v, closed %d times", err, closed.Load())
		}
		time.Sleep(2 * time.Hour) // the others end
	})
}

// opened counts what is closed.
type opened struct{ closed *atomic.Int32 }

func (o opened) Close() error { o.closed.Add(1); return nil }

// What is opened too late is closed, and no two callers get the same.
func TestOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, number := newChecks(), 0
		var closed atomic.Int32
		open := func(ctx context.Context) (opened, error) {
			return Open(ctx, c, "socket", "/x", func() (opened, error) {
				time.Sleep(time.Minute)
				number++
				return opened{&closed}, nil
			})
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for range 3 {
			if _, err := open(short); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not answer about the socket /x") {
				t.Errorf("%v, want that the host does not answer", err)
			}
		}
		done := make(chan error)
		for range 2 {
			go func() {
				_, err := open(t.Context())
				done <- err
			}()
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := closed.Load(); number != 3 || n != 1 {
			t.Errorf("opened %d times, and closed %d times", number, n)
		}
	})
}

// Two owners ask about one source. One of them has too many checks that hang: the other one does not wait in its line.
func TestDo_OtherOwnersQuestionIsInLine_OwnerWithRoomIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newChecks()
		block := make(chan struct{})
		for i := range maxChecks / ownShare {
			go Do(t.Context(), c.For("a.com/x"), "device", fmt.Sprint(i), func() (int, error) { <-block; return 0, nil })
		}
		synctest.Wait()
		var closed atomic.Int32
		ask := func(owner string) (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if _, err := Do(ctx, c.For(owner), "device", "/dev/null", nothing); err != nil {
				return err
			}
			_, err = Open(ctx, c.For(owner), "socket", "/x", func() (opened, error) { return opened{&closed}, nil })
			return err
		}
		busy := make(chan error, 10)
		for range cap(busy) {
			go func() { busy <- ask("a.com/x") }()
		}
		synctest.Wait()
		if err := ask("b.com/y"); err != nil {
			t.Error(err)
		}
		for range cap(busy) {
			if err := <-busy; err == nil || !strings.Contains(err.Error(), "the socket /x cannot be checked: 7 other checks") {
				t.Errorf("%v, want that there is no room", err)
			}
		}
		close(block)
		synctest.Wait()
		wantNothingLeft(t, c)
	})
}
