package loops_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
)

func TestEarliest(t *testing.T) {
	never, one, two := time.Time{}, time.Unix(1, 0), time.Unix(2, 0)
	for _, test := range []struct {
		all  []time.Time
		want time.Time
	}{
		{nil, never}, {[]time.Time{never}, never}, {[]time.Time{two, one}, one}, {[]time.Time{never, two, never, one, two}, one},
	} {
		if got := loops.Earliest(test.all...); !got.Equal(test.want) {
			t.Errorf("%v: %v, want %v", test.all, got, test.want)
		}
	}
}

func TestAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if loops.At(time.Time{}) != nil {
			t.Error("never comes")
		}
		at := time.Now().Add(time.Hour)
		if got := <-loops.At(at); !got.Equal(at) {
			t.Errorf("%v, want %v", got, at)
		}
		<-loops.At(at.Add(-time.Minute)) // at once
	})
}

func TestSignal(t *testing.T) {
	c := make(chan struct{}, 1)
	loops.Signal(c)
	loops.Signal(c)
	<-c
	select {
	case <-c:
		t.Error("two signals are two")
	default:
	}
}
