package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A migration moves a node from the kubelet's device manager to devmgrd, or back.
type migration struct {
	config config.Config
	file   string // the kubelet's
	dry    bool
	out    io.Writer
	log    *slog.Logger
}

// kubeletDir is the default of plugins.kubeletDir, for examples.
const kubeletDir = "/var/lib/kubelet/device-plugins"

// oneFile requires the path of one file.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return fmt.Errorf("%s takes the path of one file, but got %q; see %[1]s --help", cmd.CommandPath(), args)
	}
	return nil
}

// addMigrationFlags adds the flags that newMigration reads.
func addMigrationFlags(cmd *cobra.Command) {
	addConfigFlags(cmd)
	cmd.Flags().Bool("dry-run", false, "change nothing, and print the planned changes")
}

func newMigration(cmd *cobra.Command, file string) (migration, error) {
	c, _, err := loadConfig(cmd)
	if err != nil {
		return migration{}, err
	}
	dry, err := cmd.Flags().GetBool("dry-run")
	if err != nil {
		return migration{}, err
	}
	if file, err = filepath.Abs(file); err != nil {
		return migration{}, err
	}
	log := warnings(cmd)
	kube.RouteLogs(log)
	return migration{config: c, file: file, dry: dry, out: cmd.OutOrStdout(), log: log}, nil
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
func (m migration) kubeletStopped(dirs ...string) error {
	for _, dir := range dirs {
		socket := filepath.Join(dir, "kubelet.sock")
		if !listens(socket) {
			continue
		}
		if m.dry {
			m.say("NOTE: the kubelet is running (%s): its later changes are not included.\n", socket)
			return nil
		}
		return fmt.Errorf("the kubelet is running: it listens at %s; stop it first (systemctl stop kubelet)", socket)
	}
	return nil
}

// kubeletsOwn returns the kubelet's directory, with links resolved, if the file is in it; else "".
func (m migration) kubeletsOwn() (string, error) {
	ours, err := filepath.EvalSymlinks(filepath.Dir(m.file))
	if err != nil {
		return "", err
	}
	kubelets, err := filepath.EvalSymlinks(m.config.Plugins.KubeletDir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && ours != kubelets {
		return "", nil
	}
	return kubelets, err
}

func (m migration) say(format string, args ...any) { fmt.Fprintf(m.out, format+"\n", args...) }
