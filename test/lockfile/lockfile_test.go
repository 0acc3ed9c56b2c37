package lockfile

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
)

func TestTake_Held_WaitsUntilItIsFree(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "lock")
	if Held(path) {
		t.Error("a file that does not exist is locked")
	}
	first, err := Take(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !Held(path) {
		t.Error("the lock is taken, and not held")
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("a second holder: %v", err)
	}
	second, err := Take(t.Context(), path, func() { first.Close() })
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := Take(ctx, path, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	second.Close()
	if Held(path) {
		t.Error("the lock is held by a closed file")
	}
}
