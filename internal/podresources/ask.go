package podresources

import (
	"context"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources/internal/takeover"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// KubeletDevices returns the number of devices of each resource in the kubelet's own device manager. The kubelet listens at the path
// of its socket, or next to it while devmgrd has taken that path over. devmgrd is the process ID of a devmgrd to skip.
func KubeletDevices(ctx context.Context, socket string, devmgrd int) (map[device.ResourceName]int, error) {
	paths := paths(socket, exists(takeover.Aside(socket)))
	first, err := dialOther(ctx, paths, devmgrd) // for a clearer error than the client
	if err != nil {
		return nil, err
	}
	first.Close()
	conn, err := connect(paths, devmgrd)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	response, err := v1.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &v1.AllocatableResourcesRequest{})
	if err != nil {
		return nil, err
	}
	all := map[device.ResourceName]int{}
	for _, d := range response.Devices {
		all[device.ResourceName(d.ResourceName)] += len(d.DeviceIds)
	}
	return all, nil
}

// exists reports whether there is a file of any type at a path.
func exists(path string) bool {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return false
	}
	defer d.Close()
	_, err = d.Stat(name)
	return err == nil
}
