package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/internal/shareddir"
)

// An endpoint is where a plugin serves: the name of a socket in the socket directory, as Register gives it, or a path,
// as a plugin gives it that the watcher has found. Paths are compared, never endpoints.

// maxSocketPath is what the kernel takes as a unix socket's path: 108 bytes with the final NUL.
const maxSocketPath = 107

// locate gives the path of an endpoint.
func locate(dir, endpoint string) string {
	if endpoint == "" || filepath.IsAbs(endpoint) {
		return endpoint
	}
	return filepath.Join(dir, endpoint)
}

// home returns the directory of ours that a path lies in, or the root directory, and the rest of the path.
func (c *Config) home(path string) (dir, rest string) {
	for _, home := range []string{c.SocketDir, c.RegistryDir} {
		if rest, inside := below(home, path); inside && home != "" {
			return home, rest
		}
	}
	return "/", strings.TrimPrefix(path, "/")
}

// stat returns what is at the path of an endpoint. No link is followed.
func (c *Config) stat(path string) (fs.FileInfo, error) {
	dir, rest := c.home(path)
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
func (c *Config) open(endpoint string) (*shareddir.Entry, error) {
	path := locate(c.SocketDir, endpoint)
	if len(path) > maxSocketPath {
		return nil, tooLong(path)
	}
	dir, rest := c.home(path)
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
	switch own, err := c.stat(filepath.Join(c.SocketDir, socketName)); {
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
		inside := false
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
	return &socketError{clip(path), fmt.Sprintf("is longer than the %d bytes that a socket's path may have", maxSocketPath)}
}

// A socketError says what is wrong with a plugin's socket for good, so that trying again is no use.
type socketError struct{ path, fault string }

func (e *socketError) Error() string { return e.path + " " + e.fault }

// spell gives the one way in which we write the path of a socket, so that two spellings of it are known as one: without
// links on the way, but below our own directories as those are configured. A path below one of them must not leave it
// through a link, since in the plugin's container that leads elsewhere.
func (r *Registry) spell(path string) (string, error) {
	parent, err := realPath(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	plain := filepath.Join(parent, filepath.Base(path))
	for _, home := range []string{r.cfg.SocketDir, r.cfg.RegistryDir} {
		real, err := realPath(home)
		if err != nil {
			return "", err
		}
		if rest, inside := below(real, plain); inside {
			return filepath.Join(home, rest), nil
		}
		if _, inside := below(home, path); inside {
			return "", &socketError{path, "leads through a link to " + plain + ", out of " + home + "; plugins must listen inside it"}
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

// watched tells whether the watch of a directory sees a socket of that path come and go.
func (r *Registry) watched(path string) bool {
	if filepath.Dir(path) == r.cfg.SocketDir {
		return true
	}
	rest, inside := below(r.cfg.RegistryDir, path)
	return inside && r.cfg.RegistryDir != "" && !hidden(rest)
}

// below gives the rest of a path that is inside a directory. Both are clean.
func below(dir, path string) (rest string, inside bool) {
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// hidden tells whether the watcher passes over a path in its directory, as the kubelet's does.
func hidden(rest string) bool {
	return strings.HasPrefix(rest, ".") || strings.Contains(rest, "/.")
}
