package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A home is the directory of one cluster that `up` made: its kubeconfig, its logs, and which run it is.
type home string

// dirFlag lets people choose the home.
func dirFlag(flags *pflag.FlagSet, dir *string) {
	def := filepath.Join(os.TempDir(), "devmgrd-cluster")
	if cache, err := os.UserCacheDir(); err == nil {
		def = filepath.Join(cache, "devmgrd-cluster")
	}
	flags.StringVar(dir, "dir", def, "where the cluster's kubeconfig and logs are")
}

func newHome(dir string) (home, error) {
	abs, err := filepath.Abs(dir)
	return home(abs), err
}

func (h home) kubeconfig() string { return filepath.Join(string(h), "kubeconfig") }
func (h home) runFile() string    { return filepath.Join(string(h), "run") }
func (h home) logs() string       { return filepath.Join(string(h), "logs") }
func (h home) log() string        { return filepath.Join(h.logs(), "cluster.log") }

// errDown says that no cluster of this home is up.
var errDown = errors.New("no cluster is up")

// run finds the living run whose ID is noted in the home.
func (h home) run() (cluster.Run, error) {
	id, err := os.ReadFile(h.runFile())
	if errors.Is(err, os.ErrNotExist) {
		return cluster.Run{}, fmt.Errorf("%w in %s", errDown, h)
	}
	if err != nil {
		return cluster.Run{}, err
	}
	return findRun(strings.TrimSpace(string(id)))
}

// note puts into the home what people need of a run that is ready.
func (h home) note(r cluster.Run) error {
	kubeconfig, err := os.ReadFile(r.Kubeconfig())
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(h.kubeconfig(), kubeconfig, 0o600),
		os.WriteFile(h.runFile(), []byte(r.ID+"\n"), 0o644),
	)
}

// empty removes what `up` has put into the home, and the home itself if nothing else is there.
func (h home) empty(keepLogs bool) error {
	errs := []error{os.RemoveAll(h.kubeconfig()), os.RemoveAll(h.runFile())}
	if !keepLogs {
		errs = append(errs, os.RemoveAll(h.logs()))
	}
	_ = os.Remove(string(h)) // fails if there are other files
	return errors.Join(errs...)
}

// findRun finds a living run by its ID, or the only one if id is "".
func findRun(id string) (cluster.Run, error) {
	runs, err := cluster.Runs()
	if err != nil {
		return cluster.Run{}, err
	}
	if id == "" && len(runs) == 1 {
		return runs[0], nil
	}
	if id == "" && len(runs) > 1 {
		return cluster.Run{}, errors.New("several runs are alive: choose one of `cluster status` with --run")
	}
	for _, r := range runs {
		if r.ID == id {
			return r, nil
		}
	}
	return cluster.Run{}, errDown
}
