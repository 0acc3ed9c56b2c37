package loops_test

import (
	"context"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
)

func TestDoubled(t *testing.T) {
	for times, want := range map[int]time.Duration{0: time.Second, 1: 2 * time.Second, 5: 30 * time.Second, 64: 30 * time.Second, 1 << 40: 30 * time.Second} {
		if got := loops.Doubled(time.Second, 30*time.Second, times); got != want {
			t.Errorf("%d times: %s, want %s", times, got, want)
		}
	}
}

func TestBackoff(t *testing.T) {
	b := loops.Backoff{First: 100, Last: 450}
	for _, most := range []int64{100, 200, 400, 450, 450} {
		if got := int64(b.Next()); got < most/2 || got > most {
			t.Errorf("got %d, want %d to %d", got, most/2, most)
		}
	}
	b.Reset()
	if got := b.Next(); got > 100 {
		t.Errorf("after Reset: %d", got)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	(&loops.Backoff{First: 1 << 60, Last: 1 << 60}).Wait(ended)
}
