package registry

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
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

// resolve gives the path to dial for an endpoint. A name may be a link, but not lead out of the directory: whoever may
// write there could otherwise have us dial any socket of the host. A path is never a link: its plugin can as well name
// what that leads to.
func resolve(dir, endpoint string) (string, error) {
	path := locate(dir, endpoint)
	if len(path) > maxSocketPath {
		return "", tooLong(path)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	if info.Mode().Type() == fs.ModeSymlink && path == endpoint {
		return "", &socketError{path, "is a link; name the socket itself"}
	}
	if info.Mode().Type() == fs.ModeSymlink {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			return "", err
		}
		home, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return "", err
		}
		if _, inside := below(home, target); !inside {
			return "", &socketError{path, "is a link to " + target + ", out of the socket directory; plugins must listen inside it"}
		}
		path = target
		if info, err = os.Lstat(path); err != nil {
			return "", err
		}
	}
	own, err := os.Lstat(filepath.Join(dir, socketName))
	switch {
	case err == nil && os.SameFile(own, info):
		return "", &socketError{path, "is our own " + socketName + "; the plugin must listen on a socket of its own"}
	case info.Mode().Type() != fs.ModeSocket:
		return "", &socketError{path, "is not a socket; the plugin must listen there before it registers"}
	case len(path) > maxSocketPath:
		return "", tooLong(path)
	}
	return path, nil
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
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	plain := filepath.Join(parent, filepath.Base(path))
	for _, home := range []string{r.cfg.SocketDir, r.cfg.RegistryDir} {
		real, err := filepath.EvalSymlinks(home)
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
