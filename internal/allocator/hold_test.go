package allocator_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Work that grows with a plugin's resources is done in parts, and the lock is free between two parts.

func many(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// refreshMany has an allocator take over several lists at once, in which devices have fallen. It calls taking with the lock held for each of them, by
// its number.
func refreshMany(t *testing.T, before func(*allocator.Allocator), taking func(a *allocator.Allocator, number int)) {
	t.Helper()
	books, err := store.Open(store.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer books.Close()
	plugins := newShop()
	var a *allocator.Allocator
	taken := 0
	a = allocator.New(allocator.Config{
		Registry: plugins, Plugins: plugins, Store: books, Notifier: plugins, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Suspends: func(device.ResourceName) bool { // called for each list with devices that have fallen
			taking(a, taken)
			taken++
			return false
		},
	})
	const n = 5
	stock := func(bad ...int) {
		for i := range n {
			plugins.stock(device.ResourceName(fmt.Sprint("vendor.com/r", i)), 2, bad...)
		}
	}
	stock()
	a.Refresh()
	stock(0)
	before(a)
	a.Refresh()
	if taken != n {
		t.Errorf("%d lists have been taken over, want %d", taken, n)
	}
}

func TestRefresh_ManyListsChange_LockIsGivenBackBetweenThem(t *testing.T) {
	t.Parallel()
	others := 0
	refreshMany(t, func(*allocator.Allocator) {}, func(a *allocator.Allocator, taken int) {
		if others != taken {
			t.Errorf("%d lists have been taken over, and others have had the lock %d times", taken, others)
		}
		a.Late(func() { others++ })
	})
}

func TestRefresh_ManyListsChange_ReadersLookOnce(t *testing.T) {
	t.Parallel()
	var updated <-chan struct{}
	refreshMany(t, func(a *allocator.Allocator) { updated = a.Updated() }, func(_ *allocator.Allocator, taken int) {
		select {
		case <-updated:
			t.Errorf("readers look after %d lists", taken)
		default:
		}
	})
	select {
	case <-updated:
	default:
		t.Error("readers do not look after the last list")
	}
}

func TestFlapping_ManyDownturnsEnd_OneIsJudgedAtATime(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		all := []device.ResourceName{gpu, nic, "vendor.com/other"}
		for _, bad := range [][]int{nil, {0}} {
			for _, one := range all {
				r.plugins.stock(one, 3, bad...)
			}
			synctest.Wait()
		}
		r.stop()
		r.after(11 * time.Second)
		for left := len(all) - 1; left >= 0; left-- {
			if n := r.Downturns(); n != left {
				t.Errorf("%d downturns are left, want %d", n, left)
			}
		}
	}, suspending)
}

func TestFlapping_OneResourceChanges_OthersAreNotLookedAt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.plugins.stock(nic, 3)
		synctest.Wait()
		r.plugins.stock(nic, 3, 0)
		r.after(time.Second)
		r.stop()
		if !r.SuspensionsKnown(gpu) || !r.SuspensionsKnown(nic) {
			t.Fatal("the planning loop has not looked at the suspensions")
		}
		time.Sleep(11 * time.Second)
		r.Downturns()
		if r.SuspensionsKnown(nic) || !r.SuspensionsKnown(gpu) {
			t.Errorf("after a fall they are known: %v, of the other resource %v", r.SuspensionsKnown(nic), r.SuspensionsKnown(gpu))
		}
		for range 2 { // nic's record stays unwritten
			r.Suspend()
		}
		r.plugins.offer(nic, func(o *device.Offer) { o.Session++ })
		r.Refresh()
		if r.SuspensionsKnown(nic) || !r.SuspensionsKnown(gpu) {
			t.Errorf("after the return of a plugin they are known: %v, of the other resource %v", r.SuspensionsKnown(nic), r.SuspensionsKnown(gpu))
		}
	}, suspending)
}

func TestFlapping_VeryManyResources_FollowedDevicesAreBounded(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		const n, each, room, few = 6, 1024, 4096, 32
		for _, bad := range [][]int{nil, many(each)} {
			for i := range n {
				r.plugins.stock(device.ResourceName(fmt.Sprint("vendor.com/r", i)), each+1, bad...)
			}
			synctest.Wait()
		}
		r.after(11 * time.Second)
		if got, want := r.FollowedFalls(), room+(n-room/each)*few; got != want {
			t.Errorf("%d devices are followed, want %d", got, want)
		}
	}, suspending)
}

func TestFlapping_DiskIsFull_UnwrittenRecordsAreBounded(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		const rounds, each = 4, 1024
		r.disk.failsFalls(errors.New("full"))
		all := many(rounds * each)
		fall := func(bad []int) {
			r.plugins.stock(gpu, len(all)+1)
			synctest.Wait()
			r.plugins.stock(gpu, len(all)+1, bad...)
			r.after(11 * time.Second)
		}
		for bad := range slices.Chunk(all, each) {
			fall(bad)
			r.Examined(gpu, device.ID(fmt.Sprint("d", len(all))), "bad")
		}
		if n := r.UnsavedFalls(); n != each {
			t.Errorf("%d devices have a record that is not on disk, want %d", n, each)
		}
		r.disk.failsFalls(nil)
		r.after(5 * time.Second)
		if unsaved, waiting := r.UnsavedFalls(), r.Downturns(); unsaved+waiting != 0 {
			t.Errorf("the disk is writable again: %d records are not on it, and %d downturns wait", unsaved, waiting)
		}
	}, suspending)
}

// A countingDisk counts the commits of falls that have begun.
type countingDisk struct {
	*store.Store
	begun   atomic.Int32
	began   func()       // called in the first
	between atomic.Int32 // how many had begun when cordons were written
}

func (d *countingDisk) SaveFalls(save, forget []device.Falls) error {
	if d.begun.Add(1) == 1 {
		d.began()
	}
	return d.Store.SaveFalls(save, forget)
}

func (d *countingDisk) SaveDeclaredCordons(all []device.Cordon) error {
	d.between.Store(d.begun.Load())
	return d.Store.SaveDeclaredCordons(all)
}

func TestFlapping_ManyRecordsAreWritten_OtherCommitsComeBetween(t *testing.T) {
	t.Parallel()
	books, err := store.Open(store.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer books.Close()
	const parts = 50 // the lock goes to who has waited for it for a millisecond, which some syncs of the disk take
	var falls []device.Falls
	for _, i := range many(parts * 1024) {
		falls = append(falls, device.Falls{Resource: gpu, ID: device.ID(fmt.Sprint("d", i))})
	}
	plugins, disk := newShop(), &countingDisk{Store: books}
	a := allocator.New(allocator.Config{
		Registry: plugins, Plugins: plugins, Store: disk, Notifier: plugins, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Falls: falls, // nothing is known of them any longer: their records are removed
	})
	var other sync.WaitGroup
	disk.began = func() {
		other.Go(func() {
			if err := a.DeclareCordons([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
				t.Error(err)
			}
		})
	}
	a.WriteFalls()
	other.Wait()
	if n := a.UnsavedFalls(); n != 0 {
		t.Errorf("%d records are not on disk", n)
	}
	if n := disk.between.Load(); n == parts {
		t.Errorf("another commit has waited for all %d of the falls", n)
	}
}

func TestWatchFailures_ManyResources_LimitIsOfAll(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		const each = failures.MaxWatched*2/3 + 1
		all := []device.ResourceName{gpu, nic}
		for _, one := range all {
			r.plugins.stock(one, each)
			synctest.Wait()
			r.bind("p-"+string(one), wants("main", device.App, one, each))
			synctest.Wait()
		}
		counted := func() (n int) {
			for _, one := range all {
				n += int(r.metric("devmgrd_device_failures_total", string(one)))
			}
			return n
		}
		for _, one := range all {
			r.plugins.stock(one, 0)
		}
		synctest.Wait()
		before := counted()
		r.stop()
		r.after(11 * time.Second)
		r.WatchFailures()
		if got := counted() - before; got == 0 || got > failures.MaxWatched {
			t.Errorf("%d devices have been looked at in one hold of the lock, want %d at most", got, failures.MaxWatched)
		}
		for range 3 { // each device is looked at twice: it counts as failed, and its failure lasts
			r.WatchFailures()
		}
		if got := counted() - before; got != 2*each {
			t.Errorf("%d devices have been looked at, want %d", got, 2*each)
		}
	})
}
