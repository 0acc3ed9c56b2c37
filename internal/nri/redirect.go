package nri

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
)

// registrationSocket is the name of the socket on which device plugins register.
const registrationSocket = "kubelet.sock"

// A Redirect leads device plugins that would talk to the kubelet to devmgrd: the mount of the kubelet's plugin
// directory in their containers is replaced by one of ours, and their manifests stay as the vendor made them.
type Redirect struct {
	From string // the kubelet's plugin directory
	To   string // devmgrd's
	// The same for the directory in which plugins wait to be asked. CSI drivers wait there too, and are the kubelet's; so
	// it is led for containers that have From as well, and for pods that ask for it.
	RegistryFrom, RegistryTo string
	// Own: each plugin pod gets its own directories in place of To and RegistryTo.
	Own bool
}

// mounts returns the mounts to put over a container's own, and the destinations of mounts that should have been
// redirected and cannot be: a mount made below one that is shared with the host would appear on the host too, in the
// hostDevices of the kubelet's own directory.
func (r Redirect) mounts(all []*api.Mount, registry bool) (instead []*api.Mount, shared []string) {
	instead, shared = redirectedDir{r.From, r.To}.mounts(all)
	if registry || slices.ContainsFunc(all, r.names) {
		more, moreShared := redirectedDir{r.RegistryFrom, r.RegistryTo}.mounts(all)
		instead, shared = append(instead, more...), append(shared, moreShared...)
	}
	return instead, shared
}

// A redirectedDir maps one directory to another.
type redirectedDir struct{ from, to string }

func (w redirectedDir) mounts(all []*api.Mount) (instead []*api.Mount, shared []string) {
	for _, m := range all {
		if m.GetType() != "bind" && m.GetType() != "" {
			continue
		}
		from := filepath.Clean(m.GetSource())
		var to *api.Mount
		switch below, inside := strings.CutPrefix(w.from, strings.TrimSuffix(from, "/")+"/"); {
		case from == w.from:
			to = &api.Mount{Destination: m.Destination, Type: "bind", Source: w.to, Options: slices.Clone(m.Options)}
		case from == filepath.Join(w.from, registrationSocket):
			to = &api.Mount{Destination: m.Destination, Type: "bind", Source: filepath.Join(w.to, registrationSocket), Options: slices.Clone(m.Options)}
		case inside:
			destination := filepath.Join(m.Destination, below)
			if slices.ContainsFunc(all, func(o *api.Mount) bool { return between(m.Destination, o.GetDestination(), destination) }) {
				continue // what the container sees there is of that mount
			}
			if slices.Contains(m.Options, "rshared") || slices.Contains(m.Options, "shared") {
				shared = append(shared, m.Destination)
				continue
			}
			access := "rw"
			if slices.Contains(m.Options, "ro") {
				access = "ro"
			}
			to = &api.Mount{Destination: destination, Type: "bind", Source: w.to, Options: []string{"rbind", "rprivate", access}}
		default:
			continue
		}
		instead = append(instead, to)
	}
	return instead, shared
}

// names reports whether a mount is of the kubelet's plugin directory itself or of its socket, as only device plugins have
// it: mounts of what is above are made by many others.
func (r Redirect) names(m *api.Mount) bool {
	from := filepath.Clean(m.GetSource())
	return from == r.From || from == filepath.Join(r.From, registrationSocket)
}

// direct reports whether a mount is of a redirected directory itself, not of one above it.
func (r Redirect) direct(m *api.Mount, registry bool) bool {
	return r.names(m) || registry && filepath.Clean(m.GetSource()) == r.RegistryFrom
}

// between reports whether path is below top, and is bottom or above it.
func between(top, path, bottom string) bool {
	top, path = filepath.Clean(top), filepath.Clean(path)
	return len(path) > len(top) && (path == bottom || strings.HasPrefix(bottom, path+"/"))
}
