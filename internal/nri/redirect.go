package nri

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// registrationSocket is the name of the socket on which device plugins register.
const registrationSocket = "kubelet.sock"

// A Redirect maps the kubelet's plugin directories in plugins' containers to devmgrd's, so that plugins register with devmgrd and
// their manifests stay unchanged.
type Redirect struct {
	From string // the kubelet's plugin directory
	To   string // devmgrd's
	// The same for the directory of plugins that wait to be called. CSI drivers use it too, and they belong to the kubelet. So it
	// is redirected only in containers that have From as well, and in pods that ask for it.
	RegistryFrom, RegistryTo string
	// Own: each plugin pod gets directories of its own in place of To and RegistryTo.
	Own bool
}

// mounts returns the mounts that replace a container's own, and the destinations of mounts that cannot be replaced: below a mount
// that is shared with the host, a replacement would appear on the host too, in the kubelet's own directory.
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
		switch rest, inside := below(w.from, from); {
		case from == w.from:
			to = &api.Mount{Destination: m.Destination, Type: "bind", Source: w.to, Options: slices.Clone(m.Options)}
		case isSocket(from, w.from):
			to = &api.Mount{Destination: m.Destination, Type: "bind", Source: filepath.Join(w.to, registrationSocket), Options: slices.Clone(m.Options)}
		case inside:
			destination := filepath.Join(m.Destination, rest)
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

// names reports whether a mount is the kubelet's plugin directory itself or its socket, as only device plugins have it; many other
// pods mount directories above it.
func (r Redirect) names(m *api.Mount) bool {
	from := filepath.Clean(m.GetSource())
	return from == r.From || isSocket(from, r.From)
}

// isSocket reports whether a path is that of the registration socket in a directory.
func isSocket(path, dir string) bool {
	rest, is := below(path, dir)
	return is && rest == registrationSocket
}

// below reports whether a path is below a directory, and returns the rest of it. The paths of each container's mounts come here: it allocates nothing.
func below(path, dir string) (rest string, is bool) {
	if rest, is = strings.CutPrefix(path, strings.TrimSuffix(dir, "/")); !is {
		return "", false
	}
	return strings.CutPrefix(rest, "/")
}

// direct reports whether a mount is a redirected directory itself.
func (r Redirect) direct(m *api.Mount, registry bool) bool {
	return r.names(m) || registry && filepath.Clean(m.GetSource()) == r.RegistryFrom
}

// between reports whether path is bottom or above it, and not above top.
func between(top, path, bottom string) bool {
	top, path = filepath.Clean(top), filepath.Clean(path)
	return len(path) > len(top) && (path == bottom || strings.HasPrefix(bottom, path+"/"))
}

// redirectMounts redirects a device plugin's mounts.
func (p *plugin) redirectMounts(adj *api.ContainerAdjustment, pod *api.PodSandbox, ctr *api.Container) error {
	if p.Redirect == nil || pod.GetAnnotations()[redirectKey] == "false" {
		return nil
	}
	registry := pod.GetAnnotations()[redirectKey] == registryToo
	instead, shared := p.Redirect.mounts(ctr.GetMounts(), registry)
	if len(instead) > 0 {
		own, err := p.ownRedirect(pod, ctr, registry)
		if err != nil {
			return device.Refuse(device.PluginDirectoryMissing, err, "the plugin's own directory cannot be created")
		}
		if own != nil {
			instead, _ = own.mounts(ctr.GetMounts(), registry)
		}
	}
	for _, m := range instead {
		adj.AddMount(mapped(ctr, m))
		p.Log.Info("redirected kubelet's plugin directory", "pod", pod.GetNamespace()+"/"+pod.GetName(), "container", nameOf(ctr), "at", m.Destination, "to", m.Source)
	}
	for _, at := range shared {
		p.Log.Info("cannot redirect mount above kubelet's plugin directory",
			"pod", pod.GetNamespace()+"/"+pod.GetName(), "container", nameOf(ctr), "at", at)
	}
	return nil
}

// ownRedirect returns the redirect to the pod's own directory, or nil for the common one. A container with a read-only mount cannot
// create a socket in it. A container that mounts a directory above sees the kubelet's own files, and needs the common directory.
func (p *plugin) ownRedirect(pod *api.PodSandbox, ctr *api.Container, registry bool) (*Redirect, error) {
	if !p.Redirect.Own || pod.GetAnnotations()[directoryKey] == common || pod.GetUid() == "" {
		return nil, nil
	}
	id := identity(pod)
	dir, has := p.Dirs.OwnDirectory(id.UID)
	writes := slices.ContainsFunc(ctr.GetMounts(), func(m *api.Mount) bool {
		return p.Redirect.direct(m, registry) && !slices.Contains(m.GetOptions(), "ro")
	})
	if !has && !writes {
		return nil, nil
	}
	if !has {
		var err error
		if dir, err = p.Dirs.Directory(id); err != nil {
			return nil, err
		}
	}
	own := *p.Redirect
	own.To, own.RegistryTo = dir.Sockets, dir.Registry
	return &own, nil
}
