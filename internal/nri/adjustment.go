package nri

import (
	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A adjustment is an answer in the making. It never becomes larger than allowed, whatever a plugin has granted.
type adjustment struct {
	*api.ContainerAdjustment
	left int // bytes that may still be added
}

func newAdjustment(to *api.ContainerAdjustment) *adjustment { return &adjustment{to, maxAdded} }

// fieldSize is what the encoding adds to an entry: its tag and its length.
const fieldSize = 6

// take counts an entry that is about to be added, and returns a refusal if it is too much.
func (d *adjustment) take(what string, bytes int) error {
	if d.left -= bytes + fieldSize; d.left < 0 {
		return device.Refuse(device.PluginError, nil,
			"the device plugins' answers become more than %d bytes of the container's specification, at a %s: a device plugin grants too much", maxAdded, what)
	}
	return nil
}
