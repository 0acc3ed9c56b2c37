package nodestatus

import (
	"errors"
	"io/fs"
	"log/slog"

	"github.com/devmgrd/devmgrd/internal/shareddir"
)

const (
	placeholderFile = "devmgrd.txt"
	placeholderText = "devmgrd keeps this file here so that the kubelet does not find this directory empty when it starts.\n" +
		"An empty directory makes the kubelet set the node's extended resources to zero (kubernetes/kubernetes issue 126943).\n"
)

// keepPlaceholder makes sure that the kubelet's plugin directory is not empty. When a kubelet registers its node and lists
// nothing there but names with a leading dot, it takes the node for a new one and sets capacity and allocatable of
// all extended resources to zero, whoever published them; running pods would then fail for want of them
// (kubernetes/kubernetes issue 126943). What stays there is a plain file: at its start the kubelet deletes sockets
// only. Failure is warned about and changes nothing else, for the reset needs a late container runtime besides.
func keepPlaceholder(dir string, log *slog.Logger) {
	if err := makePlaceholder(dir); err != nil {
		log.Warn("cannot write placeholder into kubelet's plugin directory", "dir", dir, "err", err)
	}
}

func makePlaceholder(dir string) error {
	if _, err := shareddir.Make(dir, 0o755); err != nil {
		return err
	}
	d, err := shareddir.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.CreateFile(placeholderFile, []byte(placeholderText), 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
