package cdi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// askTime bounds the question to the runtime.
const askTime = 2 * time.Second

// Readable returns nil if the runtime that is connected reads the files, or cannot be asked. Else it says why not, with the remedy. It waits for a
// runtime until ctx ends: while none is connected, no container is created, and the next one may have another configuration. Each connected runtime
// answers once.
func (f *Files) Readable(ctx context.Context) error {
	for {
		f.mu.Lock()
		hook, runtime, connected, asked, fault := f.hook, f.runtime, f.connected, f.asked, f.fault
		f.mu.Unlock()
		switch {
		case hook == Away:
			select {
			case <-connected:
				continue
			case <-ctx.Done():
				return errors.New("the container runtime is not connected to devmgrd")
			}
		case asked || runtime == 0:
			return fault
		}
		asking, cancel := context.WithTimeout(ctx, askTime)
		got, found, err := f.Runtime(asking, runtime)
		cancel()
		if err != nil {
			return fmt.Errorf("it is not known yet whether the runtime reads the CDI files of claims: %w", err)
		}
		fault = nil
		if why, remedy := got.Fault(f.Dir); why != "" {
			fault = fmt.Errorf("%s: %s; %s", device.ClaimMismatch, why, remedy)
		}
		f.mu.Lock()
		current := f.connected == connected
		if current {
			f.asked, f.fault = found, fault
		}
		f.mu.Unlock()
		if current {
			return fault
		}
	}
}
