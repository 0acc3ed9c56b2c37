package nri

import (
	"context"
	"errors"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// checkHost is hostchecks.Do, with a refusal if the host does not answer.
func checkHost[T any](ctx context.Context, host *hostchecks.Checks, what, source string, f func() (T, error)) (T, error) {
	found, err := hostchecks.Do(ctx, host, what, source, f)
	if silent := new(hostchecks.SilentError); errors.As(err, &silent) {
		return found, device.Refuse(device.HostDeviceMissing, silent.Unwrap(), "%s", silent)
	}
	return found, err
}
