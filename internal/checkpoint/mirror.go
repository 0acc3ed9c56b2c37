package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
)

// View is what a Mirror shows.
type View interface {
	Board() *device.Board                         // who has what
	Offers() map[device.ResourceName]device.Offer // what plugins list
	Moved() <-chan struct{}                       // closed when either has changed since the call
}

// A Mirror keeps a file like the kubelet's up to date. Nobody waits for it.
type Mirror struct {
	path string
	view View
	log  *slog.Logger

	failing bool // it has been told that the file cannot be written; Run's
}

const (
	mirrorPause = time.Second // between two looks at what has changed
	mirrorIdle  = 20          // so many times as long as a look has taken it rests: a twentieth of one core at most
	mirrorRetry = time.Minute // the longest pause while the file cannot be written
)

// NewMirror makes a Mirror that writes to path. Nothing is touched before Run.
func NewMirror(path string, view View, log *slog.Logger) *Mirror {
	return &Mirror{path: path, view: view, log: log}
}

// Run writes until ctx ends, and then what is still to be written. It always gives nil.
func (m *Mirror) Run(ctx context.Context) error {
	m.sweep()
	again := backoff.Backoff{First: mirrorPause, Last: mirrorRetry}
	for {
		moved := m.view.Moved() // before anything is looked at: what changes from here on counts
		began := time.Now()
		err := m.update()
		pause := rest(time.Since(began))
		if err == nil {
			again.Reset()
		} else {
			pause = max(pause, again.Next())
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if err == nil {
			select {
			case <-moved:
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil {
			continue
		}
		select {
		case <-moved:
			_ = m.update()
		default:
			if err != nil {
				_ = m.update()
			}
		}
		return nil
	}
}

// rest gives the pause after a look that has taken so long.
func rest(took time.Duration) time.Duration { return max(mirrorPause, mirrorIdle*took) }

// update writes the file if it is not as it should be. It says when that begins to fail and when it has ended.
func (m *Mirror) update() error {
	data, err := m.draw()
	if err == nil && !m.has(data) {
		err = write(m.path, data, false)
	}
	switch {
	case err != nil && !m.failing:
		m.log.Error("the file for those who read the kubelet's checkpoint is out of date; trying again until it can be written", "path", m.path, "err", err)
	case err == nil && m.failing:
		m.log.Info("the file for those who read the kubelet's checkpoint is up to date again", "path", m.path)
	}
	m.failing = err != nil
	return err
}

// draw gives what the file should say.
func (m *Mirror) draw() ([]byte, error) {
	f := File{Healthy: map[device.ResourceName][]device.ID{}}
	for r, o := range m.view.Offers() {
		if o.Reported && o.State != device.Lost {
			f.Healthy[r] = healthy(o.Inventory)
		}
	}
	for _, h := range m.view.Board().Pods {
		if err := f.add(h.Pod, h.Assignments); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(f.Entries, compare)
	return f.Encode()
}

// has tells whether the file says that already. Somebody else may have written or removed it.
func (m *Mirror) has(data []byte) bool {
	info, err := os.Lstat(m.path)
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(data)) {
		return false
	}
	old, err := os.ReadFile(m.path)
	return err == nil && bytes.Equal(old, data)
}

// sweep removes drafts that a crash has left behind.
func (m *Mirror) sweep() {
	dir := filepath.Dir(m.path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // the first update says why
	}
	for _, e := range entries {
		number, draft := strings.CutPrefix(e.Name(), draftOf(m.path))
		if !draft || number == "" || strings.Trim(number, "0123456789") != "" || !e.Type().IsRegular() {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("a draft that was left behind cannot be removed", "path", filepath.Join(dir, e.Name()), "err", err)
		}
	}
}
