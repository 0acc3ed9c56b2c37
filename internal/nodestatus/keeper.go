package nodestatus

import (
	"errors"
	"io/fs"
	"log/slog"

	"github.com/devmgrd/devmgrd/internal/shareddir"
)

const (
	keptFile = "devmgrd.txt"
	keptText = "devmgrd keeps this file here so that the kubelet does not find this directory empty when it starts.\n" +
		"An empty directory makes the kubelet set the node's extended resources to zero (kubernetes/kubernetes issue 126943).\n"
)

// keep makes sure that the kubelet's plugin directory is not empty. When a kubelet registers its node and lists
// nothing there but names with a leading dot, it takes the node for a new one and sets capacity and allocatable of
// all extended resources to zero, whoever published them; running pods would then fail for want of them
// (kubernetes/kubernetes issue 126943). What stays there is a plain file: at its start the kubelet deletes sockets
// only. Failure is warned about and changes nothing else, for the reset needs a late container runtime besides.
func keep(dir string, log *slog.Logger) {
	if err := makeKept(dir); err != nil {
		log.Warn("cannot keep a file in the kubelet's plugin directory; a kubelet that finds it empty sets extended resources to zero", "dir", dir, "err", err)
	}
}

func makeKept(dir string) error {
	if _, err := shareddir.Make(dir, 0o755); err != nil {
		return err
	}
	d, err := shareddir.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	err = d.CreateFile(keptFile, []byte(keptText), 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
