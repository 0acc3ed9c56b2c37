package daemon

import (
	"context"
	"errors"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// A part is what runs, or reports whether it is ready, from the start to the end of devmgrd.
type part struct {
	name  string
	check func() error                // nil error: it is ready; nil: it is not asked
	run   func(context.Context) error // until ctx ends, which is not an error; nil: nothing runs
}

// parts are all of them, in the order of their starts. That order is in docs/architecture.md, too.
type parts []part

// checked returns the parts that are asked whether they are ready.
func (all parts) checked() parts {
	return slices.DeleteFunc(slices.Clone(all), func(p part) bool { return p.check == nil })
}

// add adds parts in the order of their starts.
func (d *daemon) add(more ...part) { d.parts = append(d.parts, more...) }

// components returns whether the parts are ready.
func (d *daemon) components() []device.Component {
	return lists.Map(d.parts.checked(), func(p part) device.Component { return device.Component{Name: p.name, Err: p.check()} })
}

// run runs all parts side by side until ctx ends or one of them returns. Then it ends them one after the other, the last one first, and waits for each. It
// returns the errors of all of them.
func (all parts) run(ctx context.Context) error {
	type running struct {
		end   context.CancelFunc
		ended chan error
	}
	first := make(chan struct{}, len(all))
	var crew []running
	for _, p := range all {
		if p.run == nil {
			continue
		}
		// Each part has its own context, so that the parts end in order.
		own, end := context.WithCancel(context.WithoutCancel(ctx))
		r := running{end, make(chan error, 1)}
		crew = append(crew, r)
		go func() {
			r.ended <- p.run(own)
			first <- struct{}{}
		}()
	}
	select {
	case <-ctx.Done():
	case <-first:
	}
	var errs []error
	for i := len(crew) - 1; i >= 0; i-- {
		crew[i].end()
		errs = append(errs, <-crew[i].ended)
	}
	return errors.Join(errs...)
}
