package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// MakeDir makes dir with this mode, and what is missing above it so that others can pass (0755), whatever the umask is.
// What is there already keeps its mode. It gives the directories that it has made, the uppermost first.
func MakeDir(dir string, mode fs.FileMode) (made []string, err error) {
	err = os.Mkdir(dir, mode)
	if errors.Is(err, fs.ErrNotExist) {
		if made, err = MakeDir(filepath.Dir(dir), 0o755); err != nil {
			return made, err
		}
		err = os.Mkdir(dir, mode)
	}
	switch {
	case err == nil:
		return append(made, dir), os.Chmod(dir, mode)
	case errors.Is(err, fs.ErrExist):
		if info, err := os.Stat(dir); err != nil || info.IsDir() {
			return made, err
		}
		return made, fmt.Errorf("%s is not a directory", dir)
	}
	return made, err
}
