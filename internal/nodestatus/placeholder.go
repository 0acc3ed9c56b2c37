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

// keepPlaceholder keeps the kubelet's plugin directory from being empty. When a kubelet registers its node and finds only
// names with a leading dot there, it takes the node for a new one and sets capacity and allocatable of all extended resources
// to zero, whichever component published them; running pods would then fail (kubernetes/kubernetes issue 126943). The
// placeholder is a plain file, because at its start the kubelet deletes only sockets. A failure is logged and has no other
// effect, because the reset also requires a late container runtime.
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
