package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// An endpoint is where a plugin serves: the name of a socket in the plugin's socket directory, from a Register request, or a path,
// from a plugin that the watcher has found. Paths are compared, never endpoints.

// maxPath is the kernel's limit of a path, with the final NUL. Sockets are dialled through descriptors, so their shorter limit does not
// apply.
const maxPath = unix.PathMax

// A location is a pair of directories in which plugins put their sockets: a plugin pod's own, or the common one. It is never edited.
type location struct {
	pod      device.PluginPod // zero: the common pair
	sockets  string           // kubelet.sock is in it, and plugins put their sockets next to it
	registry string           // watched for sockets of plugins that wait to be called; empty: none is called

	kubelet         string   // where a plugin's container has sockets, as in the endpoint that it names to the watcher
	kubeletRegistry string   // where it has registry, likewise
	foreign         []string // directories of other locations: a plugin of this one may not name a socket there
}

// locate returns the path of an endpoint.
func (loc *location) locate(endpoint string) string {
	if endpoint == "" || filepath.IsAbs(endpoint) {
		return endpoint
	}
	return filepath.Join(loc.sockets, endpoint)
}

// split returns the directory of the location that a path lies in, or the root directory, and the rest of the path.
func (loc *location) split(path string) (dir, rest string) {
	for _, dir := range []string{loc.sockets, loc.registry} {
		if rest, inside := below(dir, path); inside && dir != "" {
			return dir, rest
		}
	}
	return "/", strings.TrimPrefix(path, "/")
}

// stat returns what is at a path in the location. No link is followed.
func (loc *location) stat(path string) (fs.FileInfo, error) {
	dir, rest := loc.split(path)
	d, err := shareddir.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(rest)
}

// dial connects to the socket of an endpoint, of which it also returns the path.
func (loc *location) dial(ctx context.Context, host *hostchecks.Checks, endpoint string) (net.Conn, string, error) {
	path := loc.locate(endpoint)
	dial := func() (net.Conn, error) {
		e, err := loc.open(endpoint)
		if err != nil {
			return nil, err
		}
		defer e.Close()
		return e.Dial(ctx)
	}
	if loc.contains(path) {
		conn, err := dial()
		return conn, path, err
	}
	conn, err := hostchecks.Open(ctx, host.For(loc.sockets), "socket", path, dial)
	return conn, path, err
}

// contains reports whether a path lies in the location. Any other one may lie in a file system that hangs.
func (loc *location) contains(path string) bool {
	dir, _ := loc.split(path)
	return dir != "/"
}

// open opens the socket of an endpoint, so that devmgrd dials the file that it has checked. A name may be a link, but must not lead out
// of the directory: a process that may write there could otherwise make devmgrd dial any socket of the host. A path must not be a link.
func (loc *location) open(endpoint string) (*shareddir.Entry, error) {
	path := loc.locate(endpoint)
	if len(path) >= maxPath {
		return nil, tooLong(path)
	}
	dir, rest := loc.split(path)
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
	switch own, err := loc.stat(filepath.Join(loc.sockets, socketName)); {
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

// follow opens a path below d. If the path is a link, and links are allowed, follow opens the link's target, below d as well. It
// also returns the paths below d that it passed through, the last one included.
func follow(d *shareddir.Dir, rest string, links bool) (_ *shareddir.Entry, passed []string, err error) {
	first := d.Join(rest)
	for range maxLinks {
		e, err := d.Open(rest)
		if err != nil {
			return nil, passed, err
		}
		passed = append(passed, rest)
		if e.Info().Mode().Type() != fs.ModeSymlink {
			return e, passed, nil
		}
		target, err := e.ReadLink()
		e.Close()
		switch {
		case err != nil:
			return nil, passed, err
		case !links:
			return nil, passed, &socketError{first, "is a link; name the socket itself"}
		}
		var inside bool
		if rest, inside = leads(d, rest, target); !inside {
			return nil, passed, &socketError{first, "is a link to " + device.Clip(target) + ", out of the socket directory; plugins must listen inside it"}
		}
	}
	return nil, passed, &socketError{first, fmt.Sprintf("leads through more than %d links; name the socket itself", maxLinks)}
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
	return &socketError{device.Clip(path), fmt.Sprintf("is longer than the %d bytes that a path may have", maxPath-1)}
}

// A socketError reports a permanent fault of a plugin's socket.
type socketError struct{ path, fault string }

func (e *socketError) Error() string { return e.path + " " + e.fault }

// spell returns the canonical path of a socket: without links on the way, but with devmgrd's directories as configured. A path below one
// of these must not have a link on the way, since in the plugin's container the link may lead elsewhere.
func (loc *location) spell(ctx context.Context, host *hostchecks.Checks, path string) (string, error) {
	if !loc.contains(path) {
		parent := filepath.Dir(path)
		real, err := hostchecks.Do(ctx, host.For(loc.sockets), "directory", parent, func() (string, error) { return realPath(parent) })
		if err != nil {
			return "", err
		}
		return loc.spellOutside(path, filepath.Join(real, filepath.Base(path)))
	}
	dir, rest := loc.split(path)
	if filepath.Dir(rest) == "." {
		return path, nil
	}
	d, err := shareddir.Open(dir)
	if err != nil {
		return "", err
	}
	defer d.Close()
	parent, err := d.OpenDir(filepath.Dir(rest))
	if errors.Is(err, unix.ENOTDIR) {
		return "", &socketError{path, "leads through a link or a file; plugins must name their sockets without links"}
	}
	if err != nil {
		return "", err
	}
	return path, parent.Close()
}

// spellOutside is spell for a path that does not begin with one of devmgrd's directories, with the path without links on the way.
func (loc *location) spellOutside(path, plain string) (string, error) {
	for _, dir := range []string{loc.sockets, loc.registry} {
		real, err := realPath(dir)
		if err != nil {
			return "", err
		}
		if rest, inside := below(real, plain); inside {
			return filepath.Join(dir, rest), nil
		}
	}
	for _, dir := range loc.foreign {
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

// watched reports whether a watched directory reports changes of a socket at that path.
func (loc *location) watched(path string) bool {
	if filepath.Dir(path) == loc.sockets {
		return true
	}
	rest, inside := below(loc.registry, path)
	return inside && loc.registry != "" && !hidden(rest)
}

// below returns the rest of a path that is inside a directory. Both are clean.
func below(dir, path string) (rest string, inside bool) {
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// hidden reports whether the watcher ignores a path in its directory, as the kubelet's does.
func hidden(rest string) bool {
	return strings.HasPrefix(rest, ".") || strings.Contains(rest, "/.")
}
