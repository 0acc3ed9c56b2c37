package registry

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	watcherapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// checkInfo checks a plugin's answer to GetInfo on the registration socket at path, without side effects. It returns the
// plugin's resource and the path of its serving socket.
func (loc *location) checkInfo(info *watcherapi.PluginInfo, path string) (device.ResourceName, string, error) {
	if t := info.GetType(); t != watcherapi.DevicePlugin {
		return "", "", &typeError{t}
	}
	if v := info.GetSupportedVersions(); !slices.Contains(v, pluginapi.Version) {
		return "", "", &requestError{fmt.Sprintf("device plugin API versions %q are not supported; supported: %s",
			device.Clip(strings.Join(v, ", ")), strings.Join(pluginapi.SupportedVersions[:], ", "))}
	}
	resource, err := device.ParseResourceName(info.GetName())
	if err != nil {
		return "", "", &requestError{err.Error()}
	}
	e := info.GetEndpoint()
	served := path
	switch {
	case e == "":
	case strings.ContainsRune(e, 0):
		return "", "", &requestError{fmt.Sprintf("endpoint %q has a NUL in it", device.Clip(e))}
	case !filepath.IsAbs(e):
		return "", "", &requestError{fmt.Sprintf("endpoint %q is not an absolute path; name the plugin's socket with its directory", device.Clip(e))}
	case slices.Contains(strings.Split(e, "/"), ".."):
		return "", "", &requestError{fmt.Sprintf(`endpoint %q has ".." in it; name the plugin's socket directly`, device.Clip(e))}
	default:
		served = loc.onHost(filepath.Clean(e))
	}
	switch dir, name := filepath.Dir(served), filepath.Base(served); {
	case dir == loc.sockets && isOwn(name):
		return "", "", &requestError{fmt.Sprintf("endpoint %q is devmgrd's registration socket; the plugin must listen on a socket of its own", device.Clip(e))}
	case len(served) >= maxPath:
		return "", "", &requestError{fmt.Sprintf("endpoint %q is %q here, longer than the %d bytes that a path may have",
			device.Clip(e), device.Clip(served), maxPath-1)}
	}
	return resource, served, nil
}

// onHost converts a path in a plugin's container to the path on the host: the container has devmgrd's directories in place
// of the kubelet's. Of two directories that contain each other the longer one counts.
func (loc *location) onHost(path string) string {
	seen, ours := loc.kubelet, loc.sockets
	other, theirs := loc.kubeletRegistry, loc.registry
	if len(other) > len(seen) {
		seen, ours, other, theirs = other, theirs, seen, ours
	}
	for _, d := range [][2]string{{seen, ours}, {other, theirs}} {
		if rest, inside := below(d[0], path); inside && d[0] != "" {
			return filepath.Join(d[1], rest)
		}
	}
	return path
}

// A typeError reports a plugin of another type.
type typeError struct{ is string }

func (e *typeError) Error() string {
	return fmt.Sprintf("type %q is not supported: devmgrd registers plugins of type %s only. CSI and DRA plugins register with the kubelet: "+
		`annotate the pod with devmgrd.io/redirect: "false", so that it has the kubelet's own directory`, device.Clip(e.is), watcherapi.DevicePlugin)
}
