package daemon

import (
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/podstatus"
	"github.com/devmgrd/devmgrd/internal/version"
)

// addCluster adds what the API server says of pods, and what it learns of devices: the Node's numbers, or ResourceSlices.
func (d *daemon) addCluster() error {
	if d.api == nil {
		d.devices.Replace(nil) // drop pods that an API server had bound to the node before
		return nil
	}
	c, log := d.config, d.logFor("nodestatus")
	d.offered = dra.NewOffering(dra.OfferingConfig{Offers: c.DRA.Offers, Names: c.DRA.Resources, MaxDevices: c.DRA.MaxDevices, Plugins: d.plugins})
	node := nodestatus.Config{
		NodeName: c.NodeName, Began: time.Now(), Client: d.api, View: d.devices, Notifier: d.notifier, Cordons: d.devices,
		Components: d.components,
		Expected:   expected(c.Node), Ignored: pods.Ignores(c.Plugins.IgnoredResources), Claimed: d.offered.Claimed,
		Uncounted: d.known.Uncounted, SaveUncounted: d.stateFile.SaveUncounted,
		KubeletDir: c.Plugins.KubeletDir, Log: log, Metrics: d.metrics,
	}
	if d.kubelet != nil {
		node.KubeletManages = func() map[device.ResourceName]bool {
			all := d.kubelet.manages()
			for _, r := range d.devices.LeftToKubelet() {
				all[r] = true
			}
			return all
		}
	}
	all := pods.Config{
		NodeName: c.NodeName, Client: d.api, Sink: d.devices, Runtime: d.present, Served: served(d.known.Pods),
		Ignored: c.Plugins.IgnoredResources, Selectors: c.Allocation.Selectors, Log: d.logFor("pods"),
	}
	if uses, lost := usesClaims(c, d.known, d.stateFile, d.logFor("dra")); uses {
		if lost {
			node.Forgotten = time.Now()
		}
		api, err := kube.ConnectResource(c.Kubernetes.Kubeconfig, version.Get().Version)
		if err != nil {
			return err
		}
		seen := dra.NewSlices(c.NodeName, api, d.logFor("dra"))
		node.Slices = seen
		d.node = nodestatus.New(node)
		d.addClaims(api, seen)
		all.Sink, all.Claims = d.claims, true
	} else {
		d.node = nodestatus.New(node)
	}
	d.pods = pods.New(all)
	d.serverVersion = kube.NewServerVersion(d.api, d.logFor("kube"))
	d.add(
		part{"pods", d.pods.Check, d.pods.Run},
		part{"node", d.node.Check, d.node.Run},
		part{name: "apiserver", run: d.serverVersion.Run},
	)
	if c.Kubernetes.PodConditions {
		d.podStatus = podstatus.New(podstatus.Config{Client: d.api, View: d.devices, Pods: d.pods, Log: d.logFor("podstatus"), Metrics: d.metrics})
		d.add(part{name: "podstatus", run: d.podStatus.Run})
	}
	return nil
}

// served returns the pods that have devices.
func served(known []device.PodRecord) map[device.Pod]bool {
	all := map[device.Pod]bool{}
	for _, r := range known {
		if len(r.Assignments) > 0 {
			all[r.Demand.Pod] = true
		}
	}
	return all
}

// expected returns node.expected by resource.
func expected(c config.Node) map[device.ResourceName]int {
	all := make(map[device.ResourceName]int, len(c.Expected))
	for name, n := range c.Expected {
		all[device.ResourceName(name)] = n
	}
	return all
}
