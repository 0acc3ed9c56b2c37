package daemon

import (
	"context"
	"errors"
)

// runAll runs parts concurrently until ctx ends or one of them returns. Then it ends them one after the other, the last
// one first, and waits for each. It returns the errors of all parts.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	type running struct {
		end   context.CancelFunc
		ended chan error
	}
	first := make(chan struct{}, len(parts))
	var crew []running
	for _, part := range parts {
		// Each part has its own context, so that the parts end in order.
		own, end := context.WithCancel(context.WithoutCancel(ctx))
		r := running{end, make(chan error, 1)}
		crew = append(crew, r)
		go func() {
			r.ended <- part(own)
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
