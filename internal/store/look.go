package store

import (
	"log/slog"
)

// ReadFile reads a state file, or a copy of one, and changes nothing. It verifies the whole file first. It fails as Open
// does, and while a devmgrd has the file open, since the file may then change at any moment: use Store.WriteTo for a copy.
func ReadFile(path string, log *slog.Logger) (b State, version uint64, err error) {
	found, err := stateSchema.inspect(path)
	if err != nil {
		return State{}, 0, err
	}
	b, err = readDB(path, log)
	return b, found.version, err
}
