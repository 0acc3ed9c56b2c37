package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A copy of the books that are in use is whole and sound, whatever is written meanwhile.
func TestACopyOfBooksInUse(t *testing.T) {
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	s, err := store.Open(store.Config{Dir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := store.Look(filepath.Join(dir, "state.db"), quiet); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a file in use is read: %v", err)
	}
	var writing sync.WaitGroup
	done := make(chan struct{})
	writing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			uid := device.PodUID(strings.Repeat("x", i%7+1))
			r := device.PodRecord{Demand: device.PodDemand{Pod: device.Pod{UID: uid, Namespace: "ns", Name: "p"}}}
			if err := s.SavePods([]device.PodRecord{r}, nil); err != nil {
				t.Error(err)
				return
			}
			if err := s.SavePods(nil, []device.PodUID{uid}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	cordons := []device.Cordon{{Resource: "a.com/gpu", ID: "1"}}
	if err := s.SaveCordons(cordons, nil); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		var text bytes.Buffer
		if _, err := s.WriteTo(&text); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "copy.db")
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		if b, version, err := store.Look(path, quiet); err != nil || version == 0 || !reflect.DeepEqual(b.Cordons, cordons) {
			t.Fatalf("the copy has %+v, version %d, %v", b, version, err)
		}
		text.Bytes()[text.Len()/2] ^= 1
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	writing.Wait()
	if _, _, err := store.Look(filepath.Join(dir, "none.db"), quiet); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
