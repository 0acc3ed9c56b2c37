package preflight

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
)

// maxClaimDevices is the API's limit for the devices of one claim, and so of one pod that requests an extended resource.
const maxClaimDevices = 32

// Claims is Dynamic Resource Allocation: what the node and the API server have for dra.resources.
type Claims struct {
	kube.ClaimAccess
	Err    error  // why the API server's part is not known
	CDIDir string // dra.cdiDir
	// Resources are those of this node that dra.resources names, with the number of their devices; 0: not known.
	Resources map[device.ResourceName]int
}

// claimed returns the resources that devmgrd, the kubelet or its checkpoint know and that are offered through claims, and those that
// dra.resources names in full.
func claimed(c config.DRA, f Facts) map[device.ResourceName]int {
	all := map[device.ResourceName]int{}
	add := func(r device.ResourceName, n int) {
		if c.Offers(string(r)) {
			all[r] = max(all[r], n)
		}
	}
	for _, name := range c.Resources {
		if r, err := device.ParseResourceName(name); err == nil {
			add(r, 0)
		}
	}
	if f.Daemon != nil {
		for r := range f.Daemon.Serves {
			add(r, f.Daemon.Devices[r])
		}
	}
	for r, n := range f.Kubelet.Devices {
		add(r, n)
	}
	for _, r := range f.Checkpoint.Resources {
		add(r, f.Checkpoint.Healthy[r])
	}
	return all
}

// numaNodes counts the NUMA nodes in a sysfs.
func numaNodes(sysfs string) int {
	found, _ := filepath.Glob(filepath.Join(sysfs, "devices/system/node/node[0-9]*")) // the pattern is valid
	return len(found)
}

// claims judges dra.resources. docs/dra.md explains it.
func (j *judge) claims(f Facts) {
	c := f.Claims
	const check = "dra"
	switch {
	case c == nil:
		return
	case c.Err != nil:
		j.fail(check, "make sure that the API server runs, and that the credentials are valid", "%v", c.Err)
		return
	case !c.Served:
		j.fail(check, "use Kubernetes 1.34 or later, or empty dra.resources",
			"the API server (%s) does not serve resource.k8s.io/v1: devmgrd cannot publish ResourceSlices, and takes the resources off the Node", release(c.Release))
		return
	}
	missing := 0
	for _, r := range c.Rights {
		if r.Err != nil {
			missing++
			j.fail(check, "use the kubelet's own credentials (/etc/kubernetes/kubelet.conf), or grant the right (/usr/share/devmgrd/kubernetes/rbac-dra.yaml)", "devmgrd may not %s: %v", r.What, r.Err)
		}
	}
	if missing == 0 {
		j.ok(check, "the API server (%s) serves resource.k8s.io/v1, and devmgrd may write this node's ResourceSlices", release(c.Release))
	}
	if c.Older {
		j.warn(check, "enable the feature gate DRAExtendedResource on the API server, the scheduler and the kubelet, and DRADeviceTaints on the API server and the scheduler; or use Kubernetes 1.36 or later",
			"with Kubernetes %s pods cannot request the resources as before, and devices have no taints, unless two feature gates are enabled: the API server does not show whether they are", release(c.Release))
	}
	j.cdiFiles(f)
	j.classes(f)
	j.lost(f)
}

// cdiFiles judges whether the runtime reads the CDI files of claims.
func (j *judge) cdiFiles(f Facts) {
	r, dir := f.Runtime, f.Claims.CDIDir
	const check = "cdi files"
	switch why, remedy := r.CDI.Fault(dir); {
	case r.Err != nil:
	case why != "":
		j.fail(check, remedy, "%s: containers with claims do not start", why)
	case len(r.CDI.Dirs) > 0:
		j.ok(check, "%s reads those of claims in %s", r.Name, dir)
	}
}

// classes judges which resources pods can request as before.
func (j *judge) classes(f Facts) {
	c := f.Claims
	names := slices.Sorted(maps.Keys(c.Resources))
	if c.ClassesErr != nil {
		if len(names) > 0 {
			j.ok("device class", "not looked at, since devmgrd may not list DeviceClasses; look with: kubectl get deviceclasses -o custom-columns=NAME:.metadata.name,RESOURCE:.spec.extendedResourceName")
		}
		return
	}
	for _, r := range names {
		if class, is := c.Classes[string(r)]; is {
			j.ok("device class", "%s names the resource %s", class, r)
			continue
		}
		j.warn("device class", "devmgrd deviceclass "+string(r)+" | kubectl apply -f -",
			"no DeviceClass names the resource %s: the scheduler does not place pods that request it as before", r)
	}
}

// lost names what pods lose that request the resources as before.
func (j *judge) lost(f Facts) {
	var large []string
	for _, r := range slices.Sorted(maps.Keys(f.Claims.Resources)) {
		if f.Claims.Resources[r] > maxClaimDevices {
			large = append(large, string(r))
		}
	}
	if len(large) > 0 {
		j.warn("dra limits", "remove the resource from dra.resources if pods request more",
			"one pod can have at most %d devices of %s: that is the API's limit for a claim", maxClaimDevices, strings.Join(large, ", "))
	}
	if f.Host.NUMANodes > 1 && len(f.Claims.Resources) > 0 {
		j.warn("dra limits", "have such pods use a ResourceClaim with matchAttribute: resource.kubernetes.io/numaNode, or remove the resource from dra.resources",
			"pods that request several devices as before get them from any of the %d NUMA nodes: the scheduler does not align them", f.Host.NUMANodes)
	}
}

// release returns the release of an API server for a sentence.
func release(of string) string {
	if of == "" {
		return "of an unknown release"
	}
	return of
}
