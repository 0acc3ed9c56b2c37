// Command dradriver is a DRA driver of network cards that do not exist, made with the library that Kubernetes has for such drivers.
// End-to-end tests have a second driver by it, with whose devices those of a device plugin are aligned.
//
//	dradriver -kubeconfig FILE -node NAME CARD,NUMA-NODE,PCIE-ROOT...
//
// A container of a pod with such a card has the device node /dev/CARD.
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

const (
	driverName = "nic.vendor.example"
	cdiKind    = driverName + "/nic"
	cdiDir     = "/var/run/cdi"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	node := flag.String("node", "", "the name of this node")
	flag.Parse()
	if err := run(*kubeconfig, *node, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "dradriver:", err)
		os.Exit(1)
	}
}

func run(kubeconfig, node string, cards []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	devices, err := parse(cards)
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
	for _, dir := range []string{cdiDir, filepath.Join(kubeletplugin.KubeletPluginsDir, driverName)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	helper, err := kubeletplugin.Start(ctx, driver{}, kubeletplugin.DriverName(driverName), kubeletplugin.KubeClient(client), kubeletplugin.NodeName(node))
	if err != nil {
		return err
	}
	defer helper.Stop()
	slice := resourceslice.Slice{Devices: devices}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{slice}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{node: pool}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// parse returns the devices that the arguments describe.
func parse(cards []string) (devices []resourceapi.Device, err error) {
	for _, card := range cards {
		parts := strings.Split(card, ",")
		if len(parts) != 3 {
			return nil, fmt.Errorf("%q is not CARD,NUMA-NODE,PCIE-ROOT", card)
		}
		near, err := strconv.ParseInt(parts[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("the NUMA node of %s: %w", parts[0], err)
		}
		devices = append(devices, resourceapi.Device{Name: parts[0], Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			deviceattribute.StandardDeviceAttributeNUMANode: {IntValue: &near},
			deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &parts[2]},
		}})
	}
	return devices, nil
}

// A driver makes a CDI file for each claim, by which the container runtime injects the cards.
type driver struct{}

// WatchHealthStatus tells the kubelet that the cards have no health to report.
func (driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	all := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := prepare(claim)
		all[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return all, nil
}

func prepare(claim *resourceapi.ResourceClaim) (devices []kubeletplugin.Device, err error) {
	var edits []map[string]any
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driverName {
			continue
		}
		name := string(claim.UID) + "-" + result.Device
		node := map[string]any{"path": "/dev/" + result.Device, "hostPath": "/dev/null"}
		edits = append(edits, map[string]any{"name": name, "containerEdits": map[string]any{"deviceNodes": []any{node}}})
		devices = append(devices, kubeletplugin.Device{
			Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device, CDIDeviceIDs: []string{cdiKind + "=" + name},
		})
	}
	text, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": cdiKind, "devices": edits})
	if err != nil {
		return nil, err
	}
	return devices, write(cdiFile(claim.UID), text)
}

// write makes a file that readers see either whole or not at all.
func write(path string, text []byte) error {
	part := path + ".tmp"
	if err := os.WriteFile(part, text, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}

func cdiFile(claim types.UID) string {
	return filepath.Join(cdiDir, driverName+"-"+string(claim)+".json")
}

func (driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	all := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(cdiFile(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		all[claim.UID] = err
	}
	return all, nil
}

func (driver) HandleError(_ context.Context, err error, doing string) {
	fmt.Fprintf(os.Stderr, "dradriver: %s: %v\n", doing, err)
}
