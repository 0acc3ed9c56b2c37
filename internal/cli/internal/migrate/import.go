package migrate

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/cli/internal/table"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/version"
)

// listTimeout bounds all requests to the API server.
const listTimeout = 30 * time.Second

// Import imports the checkpoint's assignments. It writes nothing before it has checked all of them. It writes the state file
// before it moves the checkpoint, so that an interrupted import can be repeated.
func (n Node) Import(ctx context.Context) error {
	file, err := readCheckpoint(n.File)
	if err != nil {
		return err
	}
	books, err := store.Read(n.Config.StateDir, n.Log)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return stopFirst(err)
	}
	if err := n.kubeletStopped(n.Config.Plugins.KubeletDir, filepath.Dir(n.File)); err != nil {
		return err
	}
	scene, err := n.adoptInput(ctx)
	if err != nil {
		return err
	}
	ignored := pods.Ignores(n.Config.Plugins.IgnoredResources)
	stays := file.Select(ignored)
	file = file.Select(func(r device.ResourceName) bool { return !ignored(r) })

	scene.Pods, scene.Plugins = books.Pods, books.Plugins
	plan := checkpoint.Adopt(file, scene)
	n.report(plan, stays)
	if err := refused(plan); err != nil {
		return err
	}
	dir, err := n.kubeletsOwn()
	if err != nil {
		return err
	}
	if n.DryRun {
		n.say("Nothing has been changed. Without --dry-run, this is written to %s,", n.Config.StateDir)
		if dir == "" {
			n.say("and %s is left alone: it is not in plugins.kubeletDir (%s).", n.File, n.Config.Plugins.KubeletDir)
			return nil
		}
		n.say("and %s is moved to %s and recreated.", dir, freeName(dir+asideSuffix))
		return nil
	}

	if err := n.save(file, scene); err != nil {
		return err
	}
	n.say("Written to %s.", n.Config.StateDir)
	if dir == "" {
		n.say("%s is left alone: it is not in plugins.kubeletDir (%s).\n"+
			"If that directory still holds the kubelet's own file, move it aside before you start the kubelet.", n.File, n.Config.Plugins.KubeletDir)
		return nil
	}
	aside, err := setAside(dir, stays)
	if err != nil {
		return fmt.Errorf("moving the kubelet's directory aside, after writing the assignments into devmgrd's state file: %w; "+
			"do not start the kubelet before you have followed docs/migration.md", err)
	}
	n.say("%s is now %s.\nStart devmgrd, then the kubelet, then delete the pods of the device plugins on this node.", dir, aside)
	return nil
}

// adoptInput asks the API server for the pods of this node.
func (n Node) adoptInput(ctx context.Context) (checkpoint.AdoptInput, error) {
	if n.Config.Kubernetes.Mode == config.NoCluster {
		return checkpoint.AdoptInput{}, errors.New("kubernetes.mode is none, but import needs the API server's list of pods: set the mode to cluster")
	}
	api, err := kube.Connect(n.Config.Kubernetes.Kubeconfig, version.Get().Version)
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if err := api.Get().Resource("nodes").Name(n.Config.NodeName).Do(ctx).Error(); err != nil {
		return checkpoint.AdoptInput{}, fmt.Errorf("reading node %s: %w; is nodeName right, and is the API server reachable?", n.Config.NodeName, err)
	}
	here, err := pods.List(ctx, api, n.Config.NodeName, n.Config.Plugins.IgnoredResources)
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	bootID, err := store.Boot()
	if err != nil {
		return checkpoint.AdoptInput{}, err
	}
	return checkpoint.AdoptInput{Active: here.Active, Ended: here.Ended, Now: time.Now().UTC(), Boot: bootID}, nil
}

// save plans again with the current records, and writes the plan.
func (n Node) save(file checkpoint.File, scene checkpoint.AdoptInput) (err error) {
	books, err := store.Open(store.Config{Dir: n.Config.StateDir, Log: n.Log})
	if err != nil {
		return stopFirst(err)
	}
	defer func() { err = errors.Join(err, books.Close()) }()
	has, err := books.State()
	if err != nil {
		return err
	}
	scene.Plugins, scene.Pods = has.Plugins, has.Pods
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
func (n Node) report(plan checkpoint.Plan, stays checkpoint.File) {
	fates := map[checkpoint.Outcome]string{
		checkpoint.Adopted:         "taken over",
		checkpoint.AlreadyRecorded: "left as it is: already in the state file",
		checkpoint.PodEnded:        "taken over, and released when none of its containers runs: no such pod is active",
	}
	w := table.New(n.Out, "POD", "CONTAINER", "RESOURCE", "DEVICES", "WILL BE")
	used := map[device.ResourceName]map[device.ID]bool{}
	for _, t := range plan.Items {
		w.Row(t.Pod.String(), t.Container, string(t.Resource), table.IDs(t.IDs), fates[t.Outcome])
		of := lists.Inner(used, t.Resource)
		for _, id := range t.IDs {
			of[id] = true
		}
	}
	w.End()
	w = table.New(n.Out, "RESOURCE", "DEVICES", "IN USE")
	for _, p := range plan.Plugins {
		w.Row(string(p.Resource), fmt.Sprint(len(p.Devices)), fmt.Sprint(len(used[p.Resource])))
	}
	w.End()
	for _, r := range stays.Resources() {
		n.say("%s stays with the kubelet: plugins.ignoredResources names it.", r)
	}
	for _, note := range plan.Notes {
		n.say("NOTE: %s.", note)
	}
	for _, s := range socketsBelow(n.Config.Plugins.KubeletRegistryDir()) {
		n.say("NOTE: a plugin waits at %s for the kubelet's call. If it is a device plugin, and not a CSI or DRA driver, end its container before you start the kubelet.", s)
	}
	n.say("")
}
