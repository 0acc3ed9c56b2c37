package migrate

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Export writes the state file's assignments into the kubelet's checkpoint.
func (n Node) Export() error {
	books, err := store.Read(n.Config.StateDir, n.Log)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no state file in %s; is stateDir right?", n.Config.StateDir)
	case err != nil:
		return stopFirst(err)
	}
	if err := n.kubeletStopped(filepath.Dir(n.File)); err != nil {
		return err
	}
	offered := lists.Map(books.Plugins, func(p device.PluginRecord) device.Inventory {
		return device.Inventory{Resource: p.Resource, Devices: p.Devices}
	})
	ours, err := checkpoint.FromState(books.Pods, offered)
	if err != nil {
		return err
	}
	old, err := readCheckpoint(n.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w; move it aside to export without its entries", err)
	}
	there := err == nil
	stays := old.Select(func(r device.ResourceName) bool { return !slices.Contains(ours.Resources(), r) })
	all := ours.Join(stays)
	all.Entries = append(all.Entries, left(old, ours, books.Pods)...)
	data, err := all.Encode()
	if err != nil {
		return err
	}
	if _, err := checkpoint.Decode(data); err != nil {
		return fmt.Errorf("checking the new checkpoint: %w", err)
	}
	n.reportExport(books.Pods, ours, stays)
	if n.DryRun {
		n.say("Nothing has been changed. Without --dry-run, this is written to %s.", n.File)
		return nil
	}
	if there {
		kept := freeName(n.File + ".before-export")
		if err := link(n.File, kept); err != nil {
			return fmt.Errorf("keeping the existing file: %w", err)
		}
		n.say("The previous file is kept as %s.", kept)
	}
	if err := checkpoint.Write(n.File, data); err != nil {
		return err
	}
	n.say("Written to %s.\nStart the kubelet, then delete the pods of the device plugins on this node.", n.File)
	return nil
}

// left returns the entries of pods that devmgrd knows about resources that devmgrd has too, where the kubelet has assigned the devices: it injects them.
func left(old, ours checkpoint.File, pods []device.PodRecord) (all []checkpoint.Entry) {
	known, taken := map[device.PodUID]bool{}, map[device.Key]bool{}
	for _, p := range pods {
		known[p.Demand.Pod.UID] = true
	}
	for _, e := range ours.Entries {
		for _, id := range e.IDs() {
			taken[device.Key{Resource: e.Resource, ID: id}] = true
		}
	}
	for _, e := range old.Entries {
		has := func(id device.ID) bool { return taken[device.Key{Resource: e.Resource, ID: id}] }
		if known[e.Container.Pod] && slices.Contains(ours.Resources(), e.Resource) && !slices.ContainsFunc(e.IDs(), has) {
			all = append(all, e)
		}
	}
	return all
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
func (n Node) reportExport(pods []device.PodRecord, ours, stays checkpoint.File) {
	w := table.New(n.Out, "POD", "CONTAINER", "RESOURCE", "DEVICES")
	var notes []string
	for _, p := range pods {
		for _, as := range p.Assignments {
			for _, s := range as.Shares {
				w.Row(p.Demand.Pod.String(), as.Container.Name, string(s.Resource), table.IDs(s.IDs))
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
	w.End()
	w = table.New(n.Out, "RESOURCE", "HEALTHY DEVICES")
	for _, r := range ours.Resources() {
		w.Row(string(r), fmt.Sprint(len(ours.Healthy[r])))
	}
	w.End()
	for _, r := range stays.Resources() {
		n.say("%s stays in the file unchanged: devmgrd does not know this resource.", r)
	}
	for _, note := range notes {
		n.say("NOTE: %s.", note)
	}
}
