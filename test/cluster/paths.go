package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// CacheDir is where built programs and the directories of runs are, and other things that tests need again: outside the source tree, and shared by all of
// a user's checkouts.
func CacheDir() (string, error) {
	if dir := os.Getenv("TESTCLUSTER_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache directory (set TESTCLUSTER_CACHE to choose one): %w", err)
	}
	return filepath.Join(dir, "devmgrd"), nil
}

// sourceDir is the root of devmgrd's source: above the working directory, or where this package was compiled.
func sourceDir() (string, error) {
	if dir, err := os.Getwd(); err == nil {
		if root, ok := moduleAbove(dir); ok {
			return root, nil
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok {
		if root, ok := moduleAbove(filepath.Dir(file)); ok {
			return root, nil
		}
	}
	return "", errors.New("find devmgrd's source, whose test/tools says what to build: run this inside the source tree")
}

func moduleAbove(dir string) (string, bool) {
	for {
		content, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(content, []byte("module github.com/devmgrd/devmgrd\n")) {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
