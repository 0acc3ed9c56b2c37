package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/shareddir"
)

// An endpoint is where a plugin serves: the name of a socket in its socket directory, as Register gives it, or a path, as a plugin
// gives it that the watcher has found. Paths are compared, never endpoints.

// maxPath is what the kernel takes as a path, with the final NUL. The shorter limit for a socket's path does not count: sockets are
// dialled through their descriptors.
const maxPath = unix.PathMax

// A home is where plugins put their sockets: a plugin pod's own pair of directories, or the common one. It is never edited.
type home struct {
	pod      device.PluginPod // zero: the common home
	sockets  string           // kubelet.sock is in it, and plugins put their sockets next to it
	registry string           // watched for sockets of plugins that wait to be called; empty: none is called

	kubelet         string   // where a plugin's container has sockets, as in the endpoint that it names to the watcher
	kubeletRegistry string   // where it has registry, likewise
	foreign         []string // where other homes are: no socket there is this home's
}

// locate returns the path of an endpoint.
func (h *home) locate(endpoint string) string {
	if endpoint == "" || filepath.IsAbs(endpoint) {
		return endpoint
	}
	return filepath.Join(h.sockets, endpoint)
}

// split returns the directory of the home that a path lies in, or the root directory, and the rest of the path.
func (h *home) split(path string) (dir, rest string) {
	for _, dir := range []string{h.sockets, h.registry} {
		if rest, inside := below(dir, path); inside && dir != "" {
			return dir, rest
		}
	}
	return "/", strings.TrimPrefix(path, "/")
}

// stat returns what is at the path of an endpoint. No link is followed.
func (h *home) stat(path string) (fs.FileInfo, error) {
	dir, rest := h.split(path)
	d, err := shareddir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(rest)
}

// open opens the socket of an endpoint: what is dialled is what was checked. A name may be a link, but not lead out of the
// directory: a process that may write there could otherwise have devmgrd dial any socket of the host. A path is never a link:
// its plugin can as well name what that leads to.
func (h *home) open(endpoint string) (*shareddir.Entry, error) {
	path := h.locate(endpoint)
	if len(path) >= maxPath {
		return nil, tooLong(path)
	}
	dir, rest := h.split(path)
	if rest == "" {
		return nil, notSocket(path)
	}
	d, err := shareddir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	e, _, err := follow(d, rest, path != endpoint)
	if err != nil {
		return nil, err
	}
	switch own, err := h.stat(filepath.Join(h.sockets, socketName)); {
	case err == nil && os.SameFile(own, e.Info()):
		err = &socketError{path, "is our own " + socketName + "; the plugin must listen on a socket of its own"}
		return nil, errors.Join(err, e.Close())
	case !e.IsSocket():
		return nil, errors.Join(notSocket(path), e.Close())
	}
	return e, nil
}

// maxLinks bounds a chain of links.
const maxLinks = 8

// follow opens a path below d. If that is a link, and links are allowed, it opens what the link leads to, below d as well. It
// returns all paths below d by which it came.
func follow(d *shareddir.Dir, rest string, links bool) (_ *shareddir.Entry, way []string, err error) {
	first := d.Join(rest)
	for range maxLinks {
		e, err := d.Open(rest)
		if err != nil {
			return nil, way, err
		}
		way = append(way, rest)
		if e.Info().Mode().Type() != fs.ModeSymlink {
			return e, way, nil
		}
		target, err := e.ReadLink()
		e.Close()
		switch {
		case err != nil:
			return nil, way, err
		case !links:
			return nil, way, &socketError{first, "is a link; name the socket itself"}
		}
		var inside bool
		if rest, inside = leads(d, rest, target); !inside {
			return nil, way, &socketError{first, "is a link to " + clip(target) + ", out of the socket directory; plugins must listen inside it"}
		}
	}
	return nil, way, &socketError{first, fmt.Sprintf("leads through more than %d links; name the socket itself", maxLinks)}
}

// leads returns the path below d to which a link at another path below d leads, and whether it stays below d.
func leads(d *shareddir.Dir, rest, target string) (string, bool) {
	if !filepath.IsAbs(target) {
		to := filepath.Join(filepath.Dir(rest), target)
		return to, filepath.IsLocal(to) && to != "."
	}
	target = filepath.Clean(target)
	if to, inside := below(d.Path(), target); inside {
		return to, true
	}
	real, err := d.Real()
	if err != nil {
		return "", false
	}
	return below(real, target)
}

func notSocket(path string) error {
	return &socketError{path, "is not a socket; the plugin must listen there before it registers"}
}

func tooLong(path string) error {
	return &socketError{clip(path), fmt.Sprintf("is longer than the %d bytes that a path may have", maxPath-1)}
}

// A socketError says what is wrong with a plugin's socket permanently, so that trying again is no use.
type socketError struct{ path, fault string }

func (e *socketError) Error() string { return e.path + " " + e.fault }

// spell returns the one way in which we write the path of a socket, so that two spellings of it are known as one: without
// links on the way, but below our own directories as those are configured. A path below one of them must not leave it
// through a link, since in the plugin's container that leads elsewhere.
func (h *home) spell(path string) (string, error) {
	parent, err := realPath(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	plain := filepath.Join(parent, filepath.Base(path))
	for _, dir := range []string{h.sockets, h.registry} {
		real, err := realPath(dir)
		if err != nil {
			return "", err
		}
		if rest, inside := below(real, plain); inside {
			return filepath.Join(dir, rest), nil
		}
		if _, inside := below(dir, path); inside {
			return "", &socketError{path, "leads through a link to " + plain + ", out of " + dir + "; plugins must listen inside it"}
		}
	}
	for _, dir := range h.foreign {
		real, err := realPath(dir)
		if err != nil {
			return "", err
		}
		if _, inside := below(real, plain); inside {
			return "", &socketError{path, "is in a directory of other plugins; the plugin must listen in its own"}
		}
	}
	return plain, nil
}

// realPath returns the path of a directory without links.
func realPath(dir string) (string, error) {
	d, err := shareddir.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	return d.Real()
}

// watched reports whether the watch of a directory sees a socket of that path come and go.
func (h *home) watched(path string) bool {
	if filepath.Dir(path) == h.sockets {
		return true
	}
	rest, inside := below(h.registry, path)
	return inside && h.registry != "" && !hidden(rest)
}

// below returns the rest of a path that is inside a directory. Both are clean.
func below(dir, path string) (rest string, inside bool) {
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// hidden reports whether the watcher passes over a path in its directory, as the kubelet's does.
func hidden(rest string) bool {
	return strings.HasPrefix(rest, ".") || strings.Contains(rest, "/.")
}
