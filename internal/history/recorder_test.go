package history_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/history"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const gpu device.ResourceName = "vendor.com/gpu"

// A harness is a recorder that follows a real allocator, and writes into a real history file of its own.
type harness struct {
	*allocatortest.Allocator
	*testing.T
	dir      string
	store    *failingStore
	recorder *history.Recorder
	stop     func()
}

// failingStore are real ones, on a disk that may fail.
type failingStore struct {
	*store.History
	state   *store.Store
	full    atomic.Bool
	commits atomic.Int32
	unread  atomic.Int32 // times that the open spans could not be read
}

var errFull = errors.New("the disk is full")

func (b *failingStore) SaveHistory(save []device.Span, forget []device.SpanKey) error {
	if b.full.Load() {
		return errFull
	}
	b.commits.Add(1)
	return b.History.SaveHistory(save, forget)
}

func (b *failingStore) OpenSpans() ([]device.Span, error) {
	if b.full.Load() {
		b.unread.Add(1)
		return nil, errFull
	}
	return b.History.OpenSpans()
}

func (b *failingStore) HistoryKeys() ([]device.SpanKey, error) {
	if b.full.Load() {
		return nil, errFull
	}
	return b.History.HistoryKeys()
}

func start(t *testing.T, stock int) *harness {
	t.Helper()
	dir := t.TempDir()
	r := &harness{Allocator: allocatortest.Start(t, filepath.Join(dir, "allocator")), T: t, dir: filepath.Join(dir, "history"), stop: func() {}}
	t.Cleanup(func() { r.end() })
	r.Plugins.Stock(gpu, stock)
	r.start()
	return r
}

// start opens the history file, and has a new recorder run on what it holds.
func (r *harness) start() {
	r.Helper()
	r.open()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.recorder.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		r.must(<-ended)
	})
	_, err := r.recorder.Spans(time.Time{}) // it follows from here on
	r.must(err)
}

// open is start without Run: nothing is written.
func (r *harness) open() {
	r.Helper()
	s, err := store.Open(store.Config{Dir: r.dir, Log: slog.New(slog.DiscardHandler)})
	r.must(err)
	h, open := store.OpenHistory(s)
	r.store = &failingStore{History: h, state: s}
	r.recorder = history.New(history.Config{Allocator: r.Allocator, Store: r.store, Known: open, Log: slog.New(slog.DiscardHandler)})
}

// end is a clean stop, of the history file too.
func (r *harness) end() {
	r.Helper()
	r.stop()
	if r.store != nil {
		r.must(errors.Join(r.store.Close(), r.store.state.Close()))
		r.store = nil
	}
}

// crash ends without writing what is due.
func (r *harness) crash() {
	r.store.full.Store(true)
	r.end()
}

func (r *harness) must(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// leave has a pod go, and waits until its devices are free.
func (r *harness) leave(d device.PodDemand) {
	r.Helper()
	r.Drop(d.Pod.UID)
	r.gone(d)
}

func (r *harness) gone(d device.PodDemand) {
	r.Helper()
	plugintest.Eventually(r, d.Pod.Name+" has gone", func() bool { return !r.holds(d) })
}

func (r *harness) holds(d device.PodDemand) bool {
	for _, h := range r.Snapshot().Pods {
		if h.Pod.UID == d.Pod.UID {
			return true
		}
	}
	return false
}

// tells fails unless the recorder tells these spans: pod, devices, and "open", "ended" or "noticed"; "late" is one of which no one
// saw the beginning.
func (r *harness) tells(want ...string) []device.Span {
	r.Helper()
	all, err := r.recorder.Spans(time.Time{})
	r.must(err)
	var got []string
	for _, s := range all {
		text := s.Pod.Name
		for _, id := range s.IDs {
			text += " " + string(id)
		}
		switch {
		case s.Until.IsZero():
			text += " open"
		case s.UntilApprox:
			text += " noticed"
		default:
			text += " ended"
		}
		if s.FromApprox {
			text += " late"
		}
		got = append(got, text)
		if s.From.IsZero() || time.Since(s.From) > time.Minute || !s.Until.IsZero() && s.Until.Before(s.From) {
			r.Errorf("%s: from %v until %v", text, s.From, s.Until)
		}
		if s.Pod.Namespace != "ns" || s.Pod.UID != device.PodUID("uid-"+s.Pod.Name) || s.Container != "main" || s.Resource != gpu {
			r.Errorf("%+v", s)
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return all
}

// Assignments are recorded at once, with their times, and are there after a restart.
func TestAssignedAndReleased(t *testing.T) {
	t.Parallel()
	r := start(t, 3)
	before := time.Now()
	a := r.Settle(t, allocatortest.Pod("a", gpu, 2))
	r.Settle(t, allocatortest.Pod("plain", "", 0))
	r.tells("a d000 d001 open")
	r.Settle(t, allocatortest.Pod("b", gpu, 1))
	r.leave(a)
	r.Settle(t, allocatortest.Pod("c", gpu, 1))
	all := r.tells("a d000 d001 ended", "b d002 open", "c d000 open")
	if all[0].From.Before(before) || all[0].Until.Before(all[1].From) || all[0].Until.After(all[2].From) {
		t.Errorf("the times are %v", all)
	}
	r.end()
	r.start()
	r.tells("a d000 d001 ended", "b d002 open", "c d000 open")
	if since, err := r.recorder.Spans(time.Now()); err != nil || len(since) != 2 {
		t.Errorf("since now: %v, %v", since, err)
	}
}

// A pod that is over keeps its devices as long as something of it runs.
func TestASpanLastsAsLongAsTheContainer(t *testing.T) {
	t.Parallel()
	r := start(t, 1)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	runs := device.Running{ID: "1", Container: device.Container{Pod: p.Pod.UID, Name: "main"}}
	r.RuntimeCreating(t.Context(), runs)
	r.Drop(p.Pod.UID)
	plugintest.Eventually(t, "it is over", func() bool { return !r.Snapshot().Pods[0].Active })
	r.tells("p d000 open")
	stopped := time.Now()
	r.RuntimeStopped(runs)
	r.gone(p)
	if all := r.tells("p d000 ended"); all[0].Until.Before(stopped) {
		t.Errorf("it ended at %v, before its container", all[0].Until)
	}
}

// A span whose container still has its devices goes on over a restart, and is there once.
func TestRestartWithTheSameHolder(t *testing.T) {
	t.Parallel()
	r := start(t, 1)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	first := r.tells("p d000 open")[0]
	for range 3 {
		r.end()
		r.start()
		if again := r.tells("p d000 open")[0]; !again.From.Equal(first.From) || again.Number != first.Number {
			t.Errorf("%+v was %+v", again, first)
		}
	}
	r.leave(p)
	r.end()
	r.start()
	r.tells("p d000 ended")
}

// Spans that ended unobserved have the time at which that was noticed.
func TestRestartWithAnotherHolder(t *testing.T) {
	t.Parallel()
	r := start(t, 2)
	a, b := r.Settle(t, allocatortest.Pod("a", gpu, 1)), r.Settle(t, allocatortest.Pod("b", gpu, 1))
	r.end()
	r.leave(a)
	r.Settle(t, allocatortest.Pod("c", gpu, 1))
	r.leave(b)
	r.start()
	r.tells("a d000 noticed", "b d001 noticed", "c d000 open late")
	r.end()
	r.start()
	r.tells("a d000 noticed", "b d001 noticed", "c d000 open late")
}

// A container that has other devices than before has another span.
func TestRestartWithOtherDevices(t *testing.T) {
	t.Parallel()
	r := start(t, 2)
	first := r.Settle(t, allocatortest.Pod("first", gpu, 1))
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	r.end()
	r.leave(first)
	r.leave(p)
	r.Settle(t, p)
	r.start()
	r.tells("first d000 noticed", "p d001 noticed", "p d000 open late")
}

// A crash loses what was not written; the state file makes good what is open.
func TestCrash(t *testing.T) {
	t.Parallel()
	r := start(t, 3)
	a := r.Settle(t, allocatortest.Pod("a", gpu, 1))
	plugintest.Eventually(t, "a is written", func() bool { return r.store.commits.Load() > 0 })
	r.store.full.Store(true) // from here on nothing is written any longer
	r.leave(a)
	b := r.Settle(t, allocatortest.Pod("b", gpu, 2))
	r.tells("a d000 ended", "b d000 d001 open")
	r.crash()
	r.start()
	r.tells("a d000 noticed", "b d000 d001 open late")
	plugintest.Eventually(t, "b is written", func() bool { return r.store.commits.Load() > 0 })
	r.store.full.Store(true)
	r.leave(b)
	r.crash()
	r.start()
	r.tells("a d000 noticed", "b d000 d001 noticed late")
}

// A disk that is full for a while costs nothing, and nothing is there twice.
func TestAFullDisk(t *testing.T) {
	t.Parallel()
	r := start(t, 2)
	r.end()
	r.open()
	r.store.full.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.recorder.Run(ctx) }()
	_, err := r.recorder.Spans(time.Time{}) // it follows from here on
	r.must(err)
	a := r.Settle(t, allocatortest.Pod("a", gpu, 1))
	r.Settle(t, allocatortest.Pod("b", gpu, 1))
	r.leave(a)
	r.tells("a d000 ended", "b d001 open")
	r.store.full.Store(false)
	plugintest.Eventually(t, "it is written", func() bool { return r.store.commits.Load() > 0 })
	r.tells("a d000 ended", "b d001 open")
	cancel()
	r.must(<-ended)
	r.end()
	r.start()
	r.tells("a d000 ended", "b d001 open")
}

// Store that cannot be read at the start are read later: no span stays open for ever, and none is lost.
func TestBooksThatCanBeReadLater(t *testing.T) {
	t.Parallel()
	r := start(t, 3)
	a, b := r.Settle(t, allocatortest.Pod("a", gpu, 1)), r.Settle(t, allocatortest.Pod("b", gpu, 1))
	r.end()
	r.leave(b)
	r.open()
	r.store.full.Store(true)
	r.recorder = history.New(history.Config{Allocator: r.Allocator, Store: r.store, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.recorder.Run(ctx) }()
	plugintest.Eventually(t, "it cannot be read", func() bool { return r.store.unread.Load() > 0 })
	r.Settle(t, allocatortest.Pod("c", gpu, 1))
	r.store.full.Store(false)
	plugintest.Eventually(t, "it is written", func() bool { return r.store.commits.Load() > 0 })
	cancel()
	r.must(<-ended)
	all, err := r.recorder.Spans(time.Time{})
	r.must(err)
	r.end()
	r.start()
	again, err := r.recorder.Spans(time.Time{})
	r.must(err)
	for _, all := range [][]device.Span{all, again} {
		var got []string
		for _, s := range all {
			got = append(got, fmt.Sprint(s.Pod.Name, " ", s.Until.IsZero()))
		}
		slices.Sort(got)
		if want := []string{"a false", "a true", "b false", "c true"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if all[0].Pod != a.Pod || !all[0].UntilApprox {
		t.Errorf("the first is %+v", all[0])
	}
}

// Who has fallen behind looks at who has what now, and says that it did not see how that came about.
func TestFallenBehind(t *testing.T) {
	t.Parallel()
	r := start(t, 3)
	r.end()
	r.open() // it follows only when it is asked
	a := r.Settle(t, allocatortest.Pod("a", gpu, 1))
	r.Settle(t, allocatortest.Pod("b", gpu, 1))
	r.tells("a d000 open late", "b d001 open late")
	r.leave(a)
	for i := range 5000 {
		r.Bind(allocatortest.Pod(fmt.Sprint("plain-", i), "", 0))
	}
	r.Settle(t, allocatortest.Pod("c", gpu, 2))
	if _, known := r.ChangesSince(0, 1); known {
		t.Fatal("it is not behind")
	}
	r.tells("a d000 noticed late", "b d001 open late", "c d000 d002 open late")
	d := r.Settle(t, allocatortest.Pod("b2", "", 0))
	r.leave(d)
	r.tells("a d000 noticed late", "b d001 open late", "c d000 d002 open late")
}

// However much happens, there is about one commit a second, and all of it is in the history file at a clean stop.
func TestOneCommitASecond(t *testing.T) {
	t.Parallel()
	r := start(t, 4)
	began := time.Now()
	for i := range 60 {
		r.leave(r.Settle(t, allocatortest.Pod(fmt.Sprint("p", i), gpu, 1)))
	}
	r.stop()
	// The first, if something was there already when the recorder began; the second after a change; and the last.
	if n, most := r.store.commits.Load(), int32(time.Since(began)/time.Second)+2; n > most {
		t.Errorf("%d commits, want at most %d", n, most)
	}
	r.end()
	r.start()
	all, err := r.recorder.Spans(time.Time{})
	if err != nil || len(all) != 60 {
		t.Errorf("%d spans, %v", len(all), err)
	}
}

// What is too much or too old goes, the oldest first, in the commit that brings something new.
func TestBounds(t *testing.T) {
	t.Parallel()
	now := time.Now().UTC()
	many := func(n int, age time.Duration, id string) (all []device.Span) {
		for i := range n {
			until := now.Add(time.Duration(i)*time.Millisecond - age)
			all = append(all, device.Span{
				Number: uint64(until.UnixNano()), Pod: device.Pod{UID: "old", Namespace: "ns", Name: fmt.Sprint(i)},
				Container: "main", Resource: gpu, IDs: []device.ID{device.ID(id)}, From: until.Add(-time.Second), Until: until,
			})
		}
		return all
	}
	for name, c := range map[string]struct {
		had  []device.Span
		kept int // of them
	}{
		"too many":  {many(history.MaxEnded+50, time.Hour, "d"), history.MaxEnded - 1},
		"too old":   {append(many(30, history.MaxAge+time.Hour, "d"), many(20, history.MaxAge-time.Hour, "d")...), 20},
		"too large": {many(40, time.Hour, strings.Repeat("d", 1<<19)), 31},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, 1)
			r.end()
			r.open()
			r.must(r.store.SaveHistory(c.had, nil))
			r.end()
			r.start()
			r.leave(r.Settle(t, allocatortest.Pod("new", gpu, 1)))
			r.end()
			r.open()
			keys, err := r.store.HistoryKeys()
			if err != nil || len(keys) != c.kept+1 {
				t.Fatalf("%d are kept, %v; want %d", len(keys), err, c.kept+1)
			}
			if oldest := c.had[len(c.had)-c.kept]; keys[0].Number != oldest.Number {
				t.Errorf("the oldest ended at %v, want %v", keys[0].Until, oldest.Until)
			}
			// Until there is something new nothing is written, but what is too old is not told either.
			if all, err := r.recorder.Spans(time.Time{}); err != nil || len(all) != c.kept+1 || all[len(all)-1].Pod.Name != "new" {
				t.Errorf("%d are recorded, %v", len(all), err)
			}
		})
	}
}
