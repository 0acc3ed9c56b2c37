package preflight

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"
)

// DefaultContainerdConfig is containerd's default configuration file.
const DefaultContainerdConfig = "/etc/containerd/config.toml"

// maxConfigFiles bounds the files that a configuration imports.
const maxConfigFiles = 256

// readContainerd reads a configuration file and its imports. As with containerd, a later value of a key wins, and imported files are
// read in the order of their names in the importing file.
func readContainerd(path string) (Containerd, error) {
	c := Containerd{File: path}
	read := map[string]bool{}
	for pending := []string{path}; len(pending) > 0; pending = pending[1:] {
		file := filepath.Clean(pending[0])
		if read[file] {
			continue
		}
		if len(read) == maxConfigFiles {
			return c, fmt.Errorf("containerd's configuration %s: it imports more than %d files", path, maxConfigFiles)
		}
		read[file] = true
		imports, err := c.merge(file)
		if err != nil {
			return c, fmt.Errorf("containerd's configuration %s: %w", file, err)
		}
		pending = append(pending, imports...)
	}
	return c, nil
}

// merge reads one file over the values so far. It returns the files that it imports.
func (c *Containerd) merge(path string) (imports []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var f struct {
		Imports  []string  `toml:"imports"`
		Disabled *[]string `toml:"disabled_plugins"`
		Plugins  struct {
			NRI struct {
				Disable            *bool  `toml:"disable"`
				DisableConnections *bool  `toml:"disable_connections"`
				Socket             string `toml:"socket_path"`
				RequestTimeout     string `toml:"plugin_request_timeout"`
				Validator          struct {
					Enable   *bool     `toml:"enable"`
					Required *[]string `toml:"required_plugins"`
				} `toml:"default_validator"`
			} `toml:"io.containerd.nri.v1.nri"`
			CRI struct {
				CDI *bool `toml:"enable_cdi"`
			} `toml:"io.containerd.grpc.v1.cri"`
		} `toml:"plugins"`
	}
	if err := toml.Unmarshal(text, &f); err != nil {
		return nil, err
	}
	c.files = append(c.files, path)
	if info.ModTime().After(c.Changed) {
		c.Changed = info.ModTime()
	}
	if f.Disabled != nil {
		c.Disabled = *f.Disabled
	}
	nri := f.Plugins.NRI
	take(&c.Disable, nri.Disable)
	take(&c.DisableConnections, nri.DisableConnections)
	take(&c.Validator, nri.Validator.Enable)
	take(&c.CDI, f.Plugins.CRI.CDI)
	if nri.Validator.Required != nil {
		c.Required = *nri.Validator.Required
	}
	if nri.Socket != "" {
		c.Socket = nri.Socket
	}
	if nri.RequestTimeout != "" {
		c.RequestTimeout = nri.RequestTimeout
	}
	for _, pattern := range f.Imports {
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(path), pattern)
		}
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("imports %q: %w", pattern, err)
		}
		imports = append(imports, found...)
	}
	return imports, nil
}

func take(to **bool, value *bool) {
	if value != nil {
		*to = value
	}
}
