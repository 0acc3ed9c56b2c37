package main

import (
	"context"
	"errors"
)

// runAll runs parts side by side until ctx ends or one of them returns; then it ends them one after the other, the last
// one first, and waits for each. It returns the errors of all.
func runAll(ctx context.Context, parts ...func(context.Context) error) error {
	type running struct {
		end   context.CancelFunc
		ended chan error
	}
	first := make(chan struct{}, len(parts))
	var crew []running
	for _, part := range parts {
		// Each has a context of its own, so that all do not end at once.
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
