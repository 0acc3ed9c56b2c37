package nri

import (
	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An adjustment is an answer under construction. It never exceeds its limit, whatever a plugin has granted.
type adjustment struct {
	*api.ContainerAdjustment
	left int // bytes that may still be added
}

func newAdjustment(to *api.ContainerAdjustment) *adjustment { return &adjustment{to, maxAdded} }

// fieldSize is what the encoding adds to an entry: its tag and its length.
const fieldSize = 6

// take counts an entry before it is added, and returns a refusal if the limit is exceeded.
func (d *adjustment) take(what string, bytes int) error {
	if d.left -= bytes + fieldSize; d.left < 0 {
		return device.Refuse(device.PluginError, nil,
			"the device plugins' answers add more than %d bytes to the container's specification, at a %s: a device plugin grants too much", maxAdded, what)
	}
	return nil
}
