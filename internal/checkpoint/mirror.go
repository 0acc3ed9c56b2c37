package checkpoint

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// View is the source of a Mirror.
type View interface {
	Snapshot() *device.Snapshot  // the pods' devices
	Resources() device.Resources // the plugins' devices
	Updated() <-chan struct{}    // closed at the next change of either
}

// A Mirror keeps a file like the kubelet's up to date. No component waits for it.
type Mirror struct {
	path string
	view View
	only *selection // nil: all resources are shown
	log  *slog.Logger

	told           bool            // the failure to write has been logged; Run's
	faults, strays *rate.Sometimes // limits for log lines about that, and about another file at the path
}

const (
	mirrorPause = time.Second // between two updates
	mirrorIdle  = 20          // rest, as a multiple of an update's duration: a twentieth of one core at most
	mirrorRetry = time.Minute // the longest pause while writes fail
)

// NewMirror returns a Mirror that writes to path. It touches no file before Run.
func NewMirror(path string, view View, log *slog.Logger) *Mirror {
	return &Mirror{path: path, view: view, log: log, faults: loops.Seldom(), strays: loops.Seldom()}
}

// Run writes until ctx ends, and then writes the rest. It always returns nil.
func (m *Mirror) Run(ctx context.Context) error {
	m.sweep()
	again := loops.Backoff{First: mirrorPause, Last: mirrorRetry}
	for {
		moved := m.view.Updated() // before update reads anything, so that no later change is missed
		began := time.Now()
		err := m.update()
		pause := rest(time.Since(began))
		if err == nil {
			again.Reset()
		} else {
			pause = max(pause, again.Next())
		}
		loops.Sleep(ctx, pause)
		if err == nil {
			select {
			case <-moved:
			case <-m.only.changed():
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil {
			continue
		}
		if m.only != nil {
			return nil // its directory is being removed, or the next start updates the file
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

// rest returns the pause after an update of this duration.
func rest(took time.Duration) time.Duration { return max(mirrorPause, mirrorIdle*took) }

// update writes the file if it is out of date. It logs the first failure and the recovery.
func (m *Mirror) update() error {
	data, err := m.draw()
	if err == nil && !m.has(data) {
		err = write(m.path, func(d *shareddir.Dir, name string) error { return d.ReplaceFile(name, data) })
		if m.only != nil && errors.Is(err, fs.ErrNotExist) {
			err = nil // the pod is gone, with its directory
		}
	}
	switch {
	case err != nil && !m.told:
		m.faults.Do(func() {
			m.told = true
			m.log.Error("cannot write checkpoint mirror; retrying", "path", m.path, "err", err)
		})
	case err == nil && m.told:
		m.told = false
		m.log.Info("checkpoint mirror up to date again", "path", m.path)
	}
	return err
}

// draw returns the file's current content.
func (m *Mirror) draw() ([]byte, error) {
	f := File{Healthy: map[device.ResourceName][]device.ID{}}
	for r, o := range m.view.Resources().Offers() {
		if o.Reported && o.State != device.Lost && m.only.has(r) {
			f.Healthy[r] = healthy(o.Inventory)
		}
	}
	for _, h := range m.view.Snapshot().Pods {
		if err := f.add(h.Pod, h.Assignments, m.only.has); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(f.Entries, compare)
	return f.Encode()
}

// has reports whether the file already has that content. Another process may have written, removed or exchanged the file.
func (m *Mirror) has(data []byte) bool {
	d, name, err := shareddir.Split(m.path)
	if err != nil {
		return false
	}
	defer d.Close()
	e, err := d.Open(name)
	if err != nil {
		return false
	}
	defer e.Close()
	if !e.Info().Mode().IsRegular() {
		m.strays.Do(func() {
			m.log.Warn("checkpoint's name taken; replacing file", "path", m.path, "type", shareddir.TypeName(e.Info().Mode()))
		})
		return false
	}
	if e.Info().Size() != int64(len(data)) {
		return false
	}
	old, err := e.Read(int64(len(data)))
	return err == nil && bytes.Equal(old, data)
}

// sweep removes temporary files left by a crash.
func (m *Mirror) sweep() {
	d, name, err := shareddir.Split(m.path)
	if err != nil {
		return // the first update reports why
	}
	defer d.Close()
	if err := d.RemoveDrafts(name); err != nil {
		m.log.Warn("cannot remove temporary files", "path", m.path, "err", err)
	}
}
