package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/store"
)

// newExportCommand returns "devmgrd export".
func newExportCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "export",
		Short:   "Export assignments for another device manager",
		Long:    "export writes devmgrd's assignments for another device manager. docs/migration.md has all the steps.",
		Example: "  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run",
		Args:    usage(noSuchCommand),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newExportCheckpointCommand())
	return cmd
}

func newExportCheckpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubelet-checkpoint FILE",
		Short: "Write the assignments for the kubelet's device manager",
		Long: "kubelet-checkpoint writes devmgrd's state file as the checkpoint from which a kubelet's device manager starts.\n" +
			"Neither the kubelet nor devmgrd may be running; pods may. The entries of other resources in an existing checkpoint\n" +
			"stay, and the old file is kept next to the new one.",
		Example: "  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name) + " --dry-run\n" +
			"  devmgrd export kubelet-checkpoint " + filepath.Join(kubeletDir, checkpoint.Name),
		Args: usage(oneFile),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := newMigration(cmd, args[0])
			if err != nil {
				return err
			}
			return m.exportCheckpoint()
		},
	}
	addMigrationFlags(cmd)
	return cmd
}

// exportCheckpoint writes the state file's assignments into the kubelet's checkpoint.
func (m migration) exportCheckpoint() error {
	books, err := store.Read(m.config.StateDir, m.log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no state file in %s; is stateDir right?", m.config.StateDir)
	case err != nil:
		return stopFirst(err)
	}
	if err := m.kubeletStopped(filepath.Dir(m.file)); err != nil {
		return err
	}
	offered := make([]device.Inventory, len(books.Plugins))
	for i, p := range books.Plugins {
		offered[i] = device.Inventory{Resource: p.Resource, Devices: p.Devices}
	}
	ours, err := checkpoint.FromState(books.Pods, offered)
	if err != nil {
		return err
	}
	old, err := readCheckpoint(m.file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; move it aside to export without its entries", err)
	}
	there := err == nil
	stays := old.Select(func(r device.ResourceName) bool { return !slices.Contains(ours.Resources(), r) })
	data, err := ours.Join(stays).Encode()
	if err != nil {
		return err
	}
	if _, err := checkpoint.Decode(data); err != nil {
		return fmt.Errorf("checking the new checkpoint: %w", err)
	}
	m.reportExport(books.Pods, ours, stays)
	if m.dry {
		m.say("Nothing has been changed. Without --dry-run, this is written to %s.", m.file)
		return nil
	}
	if there {
		kept := freeName(m.file + ".before-export")
		if err := link(m.file, kept); err != nil {
			return fmt.Errorf("keeping the existing file: %w", err)
		}
		m.say("The previous file is kept as %s.", kept)
	}
	if err := checkpoint.Write(m.file, data); err != nil {
		return err
	}
	m.say("Written to %s.\nStart the kubelet, then delete the pods of the device plugins on this node.", m.file)
	return nil
}

// link creates a second name for a file in its directory.
func link(file, kept string) error {
	d, name, err := shareddir.Split(file)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Link(name, filepath.Base(kept))
}

// reportExport prints the exported assignments, and the pods that the kubelet may fail.
func (m migration) reportExport(pods []device.PodRecord, ours, stays checkpoint.File) {
	w := newTable(m.out, "POD", "CONTAINER", "RESOURCE", "DEVICES")
	var notes []string
	for _, p := range pods {
		for _, as := range p.Assignments {
			for _, s := range as.Shares {
				w.row(p.Demand.Pod.String(), as.Container.Name, string(s.Resource), list(s.IDs))
			}
			if d, _ := p.Demand.Of(as.Container.Name); d.Kind == device.Init {
				notes = append(notes, fmt.Sprintf("init container %s of pod %s has devices: if it has ended, a kubelet that starts before the plugin registers "+
					"fails the pod", as.Container.Name, p.Demand.Pod))
			}
		}
		if len(p.Assignments) < len(p.Demand.Demands) {
			notes = append(notes, fmt.Sprintf("pod %s waits for devices: a kubelet that starts before the plugin registers fails the pod", p.Demand.Pod))
		}
	}
	w.end()
	w = newTable(m.out, "RESOURCE", "HEALTHY DEVICES")
	for _, r := range ours.Resources() {
		w.row(string(r), fmt.Sprint(len(ours.Healthy[r])))
	}
	w.end()
	for _, r := range stays.Resources() {
		m.say("%s stays in the file unchanged: devmgrd does not know this resource.", r)
	}
	for _, n := range notes {
		m.say("NOTE: %s.", n)
	}
}
