// Command plugin is a device plugin for the node that boots: as plain as vendors' plugins are. It runs as a service of the host or in
// a pod.
//
//	plugin DIRECTORY RESOURCE ID=PATH:PERMISSIONS[@NODE]...
//
// DIRECTORY has the socket kubelet.sock, at which it registers. A container that gets the device ID has it as /dev/ID, and in the
// variable NUMBER_ID the number (major:minor) that the device on the host had when it was granted. PATH may be a symbolic link. A
// device is healthy while PATH exists. If PERMISSIONS is cdi, PATH is the name of a CDI device, which a container gets instead.
// NODE is the NUMA node that is near the device.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func main() {
	p, err := parse(os.Args[1:])
	if err == nil {
		err = p.run()
	}
	fmt.Fprintln(os.Stderr, "plugin:", err)
	os.Exit(1)
}

type device struct {
	id, path, permissions string
	near                  *pluginapi.TopologyInfo
}

const cdi = "cdi" // for permissions

type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	dir, resource string
	devices       []device
	streams       atomic.Int32
	ended         chan struct{} // has a value when the manager has ended the last stream
}

func parse(args []string) (*plugin, error) {
	if len(args) < 3 {
		return nil, errors.New("the arguments are not DIRECTORY RESOURCE and some ID=PATH:PERMISSIONS[@NODE]")
	}
	p := &plugin{dir: args[0], resource: args[1], ended: make(chan struct{}, 1)}
	for _, word := range args[2:] {
		id, rest, ok := strings.Cut(word, "=")
		path, rest, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 {
			return nil, fmt.Errorf("%s is not ID=PATH:PERMISSIONS[@NODE]", word)
		}
		permissions, node, placed := strings.Cut(rest, "@")
		d := device{id: id, path: path, permissions: permissions}
		if placed {
			n, err := strconv.ParseInt(node, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", word, err)
			}
			d.near = &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: n}}}
		}
		p.devices = append(p.devices, d)
	}
	return p, nil
}

// run serves, and registers whenever no manager follows the list of devices.
func (p *plugin) run() error {
	endpoint := strings.ReplaceAll(p.resource, "/", "-") + ".sock"
	path := filepath.Join(p.dir, endpoint)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	for {
		if err := p.register(endpoint); err != nil {
			fmt.Fprintln(os.Stderr, "plugin: registering:", err)
			select {
			case err := <-failed:
				return err
			case <-time.After(time.Second):
				continue
			}
		}
		select {
		case err := <-failed:
			return err
		case <-p.ended:
		}
	}
}

func (p *plugin) register(endpoint string) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx,
		&pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: endpoint, ResourceName: p.resource})
	return err
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch sends the list when the stream begins, and whenever a device appears or is gone.
func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	p.streams.Add(1)
	defer func() {
		if p.streams.Add(-1) > 0 {
			return
		}
		select {
		case p.ended <- struct{}{}:
		default:
		}
	}()
	for last := ""; ; {
		list := &pluginapi.ListAndWatchResponse{}
		for _, d := range p.devices {
			health := pluginapi.Healthy
			if _, err := os.Stat(d.path); err != nil && d.permissions != cdi {
				health = pluginapi.Unhealthy
			}
			list.Devices = append(list.Devices, &pluginapi.Device{ID: d.id, Health: health, Topology: d.near})
		}
		if now := list.String(); now != last {
			if err := stream.Send(list); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-stream.Context().Done():
			return nil
		case <-time.After(time.Second):
		}
	}
}

func (p *plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		one := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICES": strings.Join(c.DevicesIds, ",")}}
		for _, id := range c.DevicesIds {
			i := slices.IndexFunc(p.devices, func(d device) bool { return d.id == id })
			if i < 0 {
				return nil, fmt.Errorf("there is no device %s", id)
			}
			if d := p.devices[i]; d.permissions == cdi {
				one.CdiDevices = append(one.CdiDevices, &pluginapi.CDIDevice{Name: d.path})
				continue
			}
			spec, number, err := p.devices[i].spec()
			if err != nil {
				return nil, err
			}
			one.Devices = append(one.Devices, spec)
			one.Envs["NUMBER_"+id] = number
		}
		answer.ContainerResponses = append(answer.ContainerResponses, one)
	}
	return answer, nil
}

// spec returns what a container gets of a device, and the device's number.
func (d device) spec() (*pluginapi.DeviceSpec, string, error) {
	path, err := filepath.EvalSymlinks(d.path)
	if err != nil {
		return nil, "", err
	}
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return nil, "", err
	}
	number := fmt.Sprintf("%d:%d", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	return &pluginapi.DeviceSpec{HostPath: path, ContainerPath: "/dev/" + d.id, Permissions: d.permissions}, number, nil
}
