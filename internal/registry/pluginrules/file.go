package pluginrules

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// A FileError is why the file of plugins.rulesFile cannot be used.
type FileError struct{ error }

func (e *FileError) Unwrap() error { return e.error }

// ReadFile reads a rules file. All its errors are FileErrors, with each mistake on its own line.
func ReadFile(path string) (*Rules, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &FileError{fmt.Errorf("plugins.rulesFile: there is no file %s; \"devmgrd rules suggest\" writes one", path)}
	}
	if err != nil {
		return nil, &FileError{fmt.Errorf("plugins.rulesFile: %w", err)}
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, &FileError{fmt.Errorf("plugins.rulesFile: %w", err)}
	}
	rules, err := Parse(text)
	if err != nil {
		return nil, &FileError{errors.New(path + ": " + strings.ReplaceAll(err.Error(), "\n", "\n"+path+": "))}
	}
	return rules, nil
}
