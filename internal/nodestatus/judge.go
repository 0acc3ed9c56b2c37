package nodestatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The conditions of the Node that devmgrd owns.
const (
	devicesHealthy     = "DevicesHealthy"
	deviceManagerReady = "DeviceManagerReady"
)

// A condition is one of the Node's conditions, without its times.
type condition struct {
	Type    string
	True    bool
	Reason  string // one word
	Message string
}

// maxMessage bounds a condition's message.
const maxMessage = 1024

// judgeComponents returns DeviceManagerReady.
func judgeComponents(all []device.Component) condition {
	var problems []string
	for _, c := range all {
		if c.Err != nil {
			problems = append(problems, c.Name+": "+c.Err.Error())
		}
	}
	if len(problems) > 0 {
		return condition{deviceManagerReady, false, "ComponentsNotReady", device.ClipTo(strings.Join(problems, "; "), maxMessage)}
	}
	return condition{deviceManagerReady, true, "ComponentsReady", "all components of devmgrd are ready"}
}

// judgeDevices returns DevicesHealthy: false if a plugin has been away for the grace period, if fewer devices are listed than
// expected, or if a listed device is unhealthy, suspended or refused. Cordoned devices do not count as unhealthy: an operator knows them.
func judgeDevices(resources device.Resources, expected map[device.ResourceName]int) condition {
	var away, missing, unhealthy, refused, listed []string
	names := map[device.ResourceName]bool{}
	for r := range expected {
		names[r] = true
	}
	for r, s := range resources.ByName {
		if s.Offer != nil {
			names[r] = true
		}
	}
	for _, r := range slices.Sorted(maps.Keys(names)) {
		var devices []device.Device
		if offer := resources.ByName[r].Offer; offer != nil {
			if devices = offer.Inventory.Devices; offer.State == device.Lost {
				devices = nil
				away = append(away, fmt.Sprintf("the plugin of %s is away", r))
			}
		}
		if want := expected[r]; len(devices) < want {
			missing = append(missing, fmt.Sprintf("%s: %d of %d expected devices are listed", r, len(devices), want))
		}
		if bad := unhealthyOf(devices, resources.ByName[r].Cordoned); len(bad) > 0 {
			unhealthy = append(unhealthy, fmt.Sprintf("%s: %d of %d devices are unhealthy: %s", r, len(bad), len(devices), device.Abridge(bad)))
		}
		if bad := resources.ByName[r].Refused; len(bad) > 0 {
			refused = append(refused, fmt.Sprintf("%s: %d of %d devices are refused by their plugin: %s", r, len(bad), len(devices), device.Abridge(bad)))
		}
		if len(devices) > 0 {
			listed = append(listed, fmt.Sprintf("%s: %d", r, len(devices)))
		}
	}
	problems := slices.Concat(away, missing, unhealthy, refused)
	reason := "AllDevicesHealthy"
	switch {
	case len(away) > 0:
		reason = "PluginMissing"
	case len(missing) > 0:
		reason = "DevicesMissing"
	case len(unhealthy) > 0:
		reason = "DeviceUnhealthy"
	case len(refused) > 0:
		reason = "DeviceRefused"
	case len(listed) == 0:
		return condition{devicesHealthy, true, "NoDevices", "no plugin lists devices"}
	}
	if len(problems) > 0 {
		return condition{devicesHealthy, false, reason, device.ClipTo(strings.Join(problems, "; "), maxMessage)}
	}
	return condition{devicesHealthy, true, reason, device.ClipTo(strings.Join(listed, "; "), maxMessage)}
}

// unhealthyOf returns the devices that are unhealthy and not cordoned by an operator, and those that devmgrd has suspended although they are not
// refused.
func unhealthyOf(devices []device.Device, cordoned map[device.ID]device.Cordon) (all []device.ID) {
	for _, d := range devices {
		if c, known := cordoned[d.ID]; c.Suspended && !c.Refused || !d.Healthy && (!known || c.Refused) {
			all = append(all, d.ID)
		}
	}
	return all
}
