package migrate

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A Node is what is moved.
type Node struct {
	Config config.Config
	File   string // the kubelet's checkpoint, absolute
	DryRun bool   // change nothing, and print the planned changes
	Out    io.Writer
	Log    *slog.Logger
}

func readCheckpoint(path string) (checkpoint.File, error) {
	f, err := checkpoint.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		if earlier, _ := filepath.Glob(filepath.Dir(path) + asideSuffix + "*/" + filepath.Base(path)); len(earlier) > 0 {
			return checkpoint.File{}, fmt.Errorf("reading the kubelet's file: %w; an earlier import has moved it to %s", err, strings.Join(earlier, ", "))
		}
	}
	if corrupt := new(checkpoint.CorruptError); err != nil && !errors.As(err, &corrupt) {
		return checkpoint.File{}, fmt.Errorf("reading the kubelet's file: %w", err)
	}
	return f, err
}

// stopFirst turns the error of a locked state file into a request to stop devmgrd.
func stopFirst(err error) error {
	if locked := new(store.LockedError); errors.As(err, &locked) {
		return fmt.Errorf("devmgrd is running (pid %d) and has the state file open: stop it first (systemctl stop devmgrd)", locked.PID)
	}
	return err
}

// kubeletStopped fails if a kubelet listens in one of the directories: it would continue to write its checkpoint, and
// never read devmgrd's. A dry run prints a note instead.
func (n Node) kubeletStopped(dirs ...string) error {
	for _, dir := range dirs {
		at := filepath.Join(dir, "kubelet.sock")
		if !socket.Listens(at) {
			continue
		}
		if n.DryRun {
			n.say("NOTE: the kubelet is running (%s): its later changes are not included.\n", at)
			return nil
		}
		return fmt.Errorf("the kubelet is running: it listens at %s; stop it first (systemctl stop kubelet)", at)
	}
	return nil
}

// kubeletsOwn returns the kubelet's directory, with links resolved, if the file is in it; else "".
func (n Node) kubeletsOwn() (string, error) {
	ours, err := filepath.EvalSymlinks(filepath.Dir(n.File))
	if err != nil {
		return "", err
	}
	kubelets, err := filepath.EvalSymlinks(n.Config.Plugins.KubeletDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && ours != kubelets {
		return "", nil
	}
	return kubelets, err
}

func (n Node) say(format string, args ...any) { fmt.Fprintf(n.Out, format+"\n", args...) }
