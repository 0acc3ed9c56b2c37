package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A copy of the state file that is in use is whole and sound, whatever is written meanwhile.
func TestCopy_FileInUse_IsConsistent(t *testing.T) {
	t.Parallel()
	dir, quiet := t.TempDir(), slog.New(slog.DiscardHandler)
	s, err := store.Open(store.Config{Dir: dir, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, _, err := store.ReadFile(filepath.Join(dir, "state.db"), quiet); err == nil || !strings.Contains(err.Error(), "in use") {
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
		if b, version, err := store.ReadFile(path, quiet); err != nil || version == 0 || !reflect.DeepEqual(b.Cordons, cordons) {
			t.Fatalf("the copy has %+v, version %d, %v", b, version, err)
		}
		text.Bytes()[text.Len()/2] ^= 1
		if err := os.WriteFile(path, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	writing.Wait()
	if _, _, err := store.ReadFile(filepath.Join(dir, "none.db"), quiet); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// stalled reads a copy no further than its first bytes, until it is let.
type stalled struct{ began, goOn chan struct{} }

func (s stalled) Write(p []byte) (int, error) {
	select {
	case <-s.began:
	default:
		close(s.began)
	}
	<-s.goOn
	return len(p), nil
}

// A slow reader of a copy holds up no commit, not even one that makes the file grow.
func TestCopy_SlowReader_DelaysNoCommit(t *testing.T) {
	t.Parallel()
	s, err := store.Open(store.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	reader := stalled{make(chan struct{}), make(chan struct{})}
	copied := make(chan error, 1)
	go func() { _, err := s.WriteTo(reader); copied <- err }()
	<-reader.began
	saved := make(chan error, 1)
	go func() {
		for i := range 200 {
			id := device.PodUID(fmt.Sprintf("u%d", i))
			d := device.PodDemand{Pod: device.Pod{UID: id, Namespace: "ns", Name: string(id)}, Created: time.Now(),
				Demands: []device.Demand{{Container: device.Container{Pod: id, Name: "c"}, Kind: device.App, Wants: map[device.ResourceName]int{"a.b/c": 1}, Env: []string{strings.Repeat("x", 1000)}}}}
			if err := s.SavePods([]device.PodRecord{{Demand: d}}, nil); err != nil {
				saved <- err
				return
			}
		}
		saved <- nil
	}()
	select {
	case err := <-saved:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("commits wait for the reader of the copy")
	}
	close(reader.goOn)
	if err := errors.Join(<-copied, s.Close()); err != nil {
		t.Error(err)
	}
}
