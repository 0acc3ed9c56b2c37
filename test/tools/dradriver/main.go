// Command dradriver is a DRA driver of devices that do not exist, such as network cards or CPUs, made with the library that Kubernetes has for such
// drivers. End-to-end tests have a second driver by it, with whose devices those of a device plugin are aligned.
//
//	dradriver -driver NAME -kubeconfig FILE -node NAME DEVICE,NUMA-NODE[,PCIE-ROOT]...
//
// A container of a pod with such a device has the device node /dev/DEVICE.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const cdiDir = "/var/run/cdi"

func main() {
	name := flag.String("driver", "", "the driver's name")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "the name of this node")
	flag.Parse()
	if err := run(driver(*name), *kubeconfig, *node, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "dradriver:", err)
		os.Exit(1)
	}
}

func run(d driver, kubeconfig, node string, devices []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	published, err := parse(devices)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, dir := range []string{cdiDir, filepath.Join(kubeletplugin.KubeletPluginsDir, string(d))} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(string(d)), kubeletplugin.KubeClient(client), kubeletplugin.NodeName(node))
	if err != nil {
		return err
	}
	defer helper.Stop()
	slice := resourceslice.Slice{Devices: published}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// parse returns the devices that the arguments describe.
func parse(devices []string) (all []resourceapi.Device, err error) {
	for _, text := range devices {
		name, place, _ := strings.Cut(text, ",")
		node, root, rooted := strings.Cut(place, ",")
		near, err := strconv.ParseInt(node, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the NUMA node of %s: %w", name, err)
		}
		attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{deviceattribute.StandardDeviceAttributeNUMANode: {IntValue: &near}}
		if rooted {
			attributes[deviceattribute.StandardDeviceAttributePCIeRoot] = resourceapi.DeviceAttribute{StringValue: &root}
		}
		all = append(all, resourceapi.Device{Name: name, Attributes: attributes})
	}
	return all, nil
}

// A driver makes a CDI file for each claim, by which the container runtime injects the devices. It is the driver's name.
type driver string

// cdiKind returns the kind of the driver's CDI devices.
func (d driver) cdiKind() string { return string(d) + "/device" }

// WatchHealthStatus tells the kubelet that the devices have no health to report.
func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (d driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	all := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		all[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return all, nil
}

func (d driver) prepare(claim *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	var edits []map[string]any
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != string(d) {
			continue
		}
		name := string(claim.UID) + "-" + result.Device
		node := map[string]any{"path": "/dev/" + result.Device, "hostPath": "/dev/null"}
		edits = append(edits, map[string]any{"name": name, "containerEdits": map[string]any{"deviceNodes": []any{node}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{d.cdiKind() + "=" + name},
		})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": d.cdiKind(), "devices": edits})
	if err != nil {
		return nil, err
	}
	return devices, write(d.cdiFile(claim.UID), text)
}

// write makes a file that readers see either whole or not at all.
func write(path string, text []byte) error {
	part := path + ".tmp"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func (d driver) cdiFile(claim types.UID) string {
	return filepath.Join(cdiDir, string(d)+"-"+string(claim)+".json")
}

func (d driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	all := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.cdiFile(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		all[claim.UID] = err
	}
	return all, nil
}

func (d driver) HandleError(_ context.Context, err error, doing string) {
	fmt.Fprintf(os.Stderr, "%s: %s: %v\n", d, doing, err)
}
