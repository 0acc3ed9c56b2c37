package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/store"
)

// newImportCommand returns "devmgrd import".
func newImportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "import",
		Short:   "Import assignments from another device manager",
		Long:    "import takes over another device manager's assignments. docs/migration.md has all the steps.",
		Example: "  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run",
		Args:    usage(noSuchCommand),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newImportCheckpointCommand())
	return cmd
}

func newImportCheckpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubelet-checkpoint FILE",
		Short: "Take over the assignments of the kubelet's device manager",
		Long: "kubelet-checkpoint reads the checkpoint in which a kubelet's device manager keeps its assignments and writes them into\n" +
			"devmgrd's state file, with their pods from the API server. Neither the kubelet nor devmgrd may be running; pods may. If\n" +
			"there are conflicts, the command lists all of them and writes nothing.\n\n" +
			"Afterwards the directory of the checkpoint is moved aside and recreated, if it is plugins.kubeletDir. Otherwise the\n" +
			"kubelet would claim the devices when it starts, and running plugins would register with it again.",
		Example: "  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run\n" +
			"  devmgrd import kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name),
		Args: usage(oneFile),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := newMigration(cmd, args[0])
			if err != nil {
				return err
			}
			return m.importCheckpoint(cmd.Context())
		},
	}
	addMigrationFlags(cmd)
	return cmd
}

// listTimeout bounds all requests to the API server.
const listTimeout = 30 * time.Second

// importCheckpoint imports the checkpoint's assignments. It writes nothing before it has checked all of them. It writes the state file
// before it moves the checkpoint, so that an interrupted import can be repeated.
func (m migration) importCheckpoint(ctx context.Context) error {
	file, err := readCheckpoint(m.file)
	if err != nil {
		return err
	}
	books, err := store.Read(m.config.StateDir, m.log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return stopFirst(err)
	}
	if err := m.kubeletStopped(m.config.Plugins.KubeletDir, filepath.Dir(m.file)); err != nil {
		return err
	}
	scene, err := m.adoptInput(ctx)
	if err != nil {
		return err
	}
	ignored := pods.Ignores(m.config.Plugins.IgnoredResources)
	stays := file.Select(ignored)
	file = file.Select(func(r device.ResourceName) bool { return !ignored(r) })

	scene.Pods, scene.Plugins = books.Pods, books.Plugins
	plan := checkpoint.Adopt(file, scene)
	m.report(plan, stays)
	if err := refused(plan); err != nil {
		return err
	}
	dir, err := m.kubeletsOwn()
	if err != nil {
		return err
	}
	if m.dry {
		m.say("Nothing has been changed. Without --dry-run, this is written to %s,", m.config.StateDir)
		if dir == "" {
			m.say("and %s is left alone: it is not in plugins.kubeletDir (%s).", m.file, m.config.Plugins.KubeletDir)
			return nil
		}
		m.say("and %s is moved to %s and recreated.", dir, freeName(dir+asideSuffix))
		return nil
	}

	if err := m.save(file, scene); err != nil {
		return err
	}
	m.say("Written to %s.", m.config.StateDir)
	if dir == "" {
		m.say("%s is left alone: it is not in plugins.kubeletDir (%s).\n"+
			"If that directory still holds the kubelet's own file, move it aside before you start the kubelet.", m.file, m.config.Plugins.KubeletDir)
		return nil
	}
	aside, err := setAside(dir, stays)
	if err != nil {
		return fmt.Errorf("moving the kubelet's directory aside, after writing the assignments into devmgrd's state file: %w; "+
			"do not start the kubelet before you have followed docs/migration.md", err)
	}
	m.say("%s is now %s.\nStart devmgrd, then the kubelet, then delete the pods of the device plugins on this node.", dir, aside)
	return nil
}

// adoptInput asks the API server for the pods of this node.
func (m migration) adoptInput(ctx context.Context) (checkpoint.AdoptInput, error) {
	api, err := connect(m.config.Kubernetes)
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	if api == nil {
		return checkpoint.AdoptInput{}, errors.New("kubernetes.mode is none, but import needs the API server's list of pods: set the mode to cluster")
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if err := api.Get().Resource("nodes").Name(m.config.NodeName).Do(ctx).Error(); err != nil {
		return checkpoint.AdoptInput{}, fmt.Errorf("reading node %s: %w; is nodeName right, and is the API server reachable?", m.config.NodeName, err)
	}
	here, err := pods.List(ctx, api, m.config.NodeName, m.config.Plugins.IgnoredResources)
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	boot, err := bootID()
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	return checkpoint.AdoptInput{Active: here.Active, Ended: here.Ended, Now: time.Now().UTC(), Boot: boot}, nil
}

// save plans again with the current records, and writes the plan.
func (m migration) save(file checkpoint.File, scene checkpoint.AdoptInput) (err error) {
	books, err := store.Open(store.Config{Dir: m.config.StateDir, Log: m.log})
	if err != nil {
		return stopFirst(err)
	}
	defer func() { err = errors.Join(err, books.Close()) }()
	if scene.Plugins, err = books.Plugins(); err != nil {
		return err
	}
	if scene.Pods, err = books.Pods(); err != nil {
		return err
	}
	plan := checkpoint.Adopt(file, scene)
	if err := refused(plan); err != nil {
		return err
	}
	return books.SaveAll(plan.Pods, plan.Plugins)
}

// refused returns all conflicts of a plan as an error.
func refused(plan checkpoint.Plan) error {
	if len(plan.Conflicts) == 0 {
		return nil
	}
	return fmt.Errorf("nothing has been written: resolve these conflicts first (see docs/migration.md):\n%s",
		strings.Join(plan.Conflicts, "\n"))
}

// report prints the planned assignments, and notes.
func (m migration) report(plan checkpoint.Plan, stays checkpoint.File) {
	fates := map[checkpoint.Outcome]string{
		checkpoint.Adopted:         "taken over",
		checkpoint.AlreadyRecorded: "left as it is: already in the state file",
		checkpoint.PodEnded:        "taken over, and released when none of its containers runs: no such pod is active",
	}
	w := newTable(m.out, "POD", "CONTAINER", "RESOURCE", "DEVICES", "WILL BE")
	used := map[device.ResourceName]map[device.ID]bool{}
	for _, t := range plan.Items {
		w.row(t.Pod.String(), t.Container, string(t.Resource), list(t.IDs), fates[t.Outcome])
		if used[t.Resource] == nil {
			used[t.Resource] = map[device.ID]bool{}
		}
		for _, id := range t.IDs {
			used[t.Resource][id] = true
		}
	}
	w.end()
	w = newTable(m.out, "RESOURCE", "DEVICES", "IN USE")
	for _, p := range plan.Plugins {
		w.row(string(p.Resource), fmt.Sprint(len(p.Devices)), fmt.Sprint(len(used[p.Resource])))
	}
	w.end()
	for _, r := range stays.Resources() {
		m.say("%s stays with the kubelet: plugins.ignoredResources names it.", r)
	}
	for _, n := range plan.Notes {
		m.say("NOTE: %s.", n)
	}
	for _, s := range socketsBelow(m.config.Plugins.KubeletRegistryDir()) {
		m.say("NOTE: a plugin waits at %s for the kubelet's call. If it is a device plugin, and not a CSI or DRA driver, end its container before you start the kubelet.", s)
	}
	m.say("")
}
