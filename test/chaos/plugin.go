package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resourceName = "chaos.example/dev"
	deviceCount  = 4
	longName     = "a-vendor-with-a-name-that-is-longer-than-the-values-of-attributes.chaos.example/dev" // see runPlugin
	longDevice   = "long-dev-4"                                                                          // its only device
	mood         = "/run/chaos/mood.json"                                                                // how the plugin behaves
	hostMount    = "/run/chaos/share"                                                                    // where a file system can be made to hang
	hostLibs     = hostMount + "/libs"                                                                   // what the plugin mounts while it shares

	// What a container of the tests can be known by, from outside.
	podVariable       = "CHAOS_POD"
	containerVariable = "CHAOS_CONTAINER"
	wantsVariable     = "CHAOS_WANTS"
	devicesVariable   = "CHAOS_DEVICES" // the plugin's
)

// A Mood is how the plugin behaves.
type Mood struct {
	Errs      bool          // Allocate fails
	Slow      time.Duration // Allocate takes as long
	Unhealthy int           // so many devices are unhealthy, the last ones
	Gone      int           // so many devices are not listed, the last ones
	Loner     bool          // it registers when it starts, and never again
	Bad       int           // Allocate fails for one device, which is healthy: the first, the second and so on; 0: none
	Refused   bool          // a device has been refused in this sequence
	Flaps     bool          // the first device's health changes each 700 ms
	Names     int           // all devices have other IDs with each number; 0: the first ones
	Share     bool          // containers get a mount with their devices
	Free      bool          // a plugin that starts lists only devices that no container has then, until it starts again
}

func (m Mood) write() error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := os.WriteFile(mood+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(mood+".new", mood)
}

func readMood() (m Mood) {
	if text, err := os.ReadFile(mood); err == nil {
		_ = json.Unmarshal(text, &m) // the driver writes it whole
	}
	return m
}

// usable is how many devices are listed and healthy, a device that flaps among them.
func (m Mood) usable() int { return deviceCount - max(m.Unhealthy, m.Gone) }

func (m Mood) devices() []*pluginapi.Device {
	var all []*pluginapi.Device
	for i := range deviceCount - m.Gone {
		health := pluginapi.Healthy
		if i >= deviceCount-m.Unhealthy || m.Flaps && i == 0 && time.Now().UnixMilli()/700%2 == 0 {
			health = pluginapi.Unhealthy
		}
		all = append(all, &pluginapi.Device{ID: m.id(i), Health: health})
	}
	return all
}

// id returns the ID of a device, in which the hardware is the last digit.
func (m Mood) id(device int) string {
	if m.Names == 0 {
		return fmt.Sprintf("dev-%d", device)
	}
	return fmt.Sprintf("n%d-dev-%d", m.Names, device)
}

// hardware returns what an ID stands for, under whatever name.
func hardware(id string) string { return id[strings.LastIndexByte(id, '-')+1:] }

// plugin is a device plugin, as simple as real ones are.
type plugin struct {
	pluginapi.UnimplementedDevicePluginServer
	dir, name string
	taken     map[string]bool // the hardware that containers had when the plugin started
}

// The names of plugins, and of their sockets.
const (
	firstPlugin = "chaos" // of the tests' resource
	surgePlugin = "surge" // another process for the same resource, as in a roll-out
	mutePlugin  = "mute"  // likewise, and it never lists its devices
	longPlugin  = "long"  // of the resource with a long name
)

// runPlugin serves until it is killed, or returns the error that prevents it. Like most plugins it registers again when the manager's socket is another one.
func runPlugin(dir, name string) error {
	p := &plugin{dir: dir, name: name, taken: map[string]bool{}}
	for _, h := range holders() {
		for _, id := range h.has {
			p.taken[hardware(id)] = true
		}
	}
	path := filepath.Join(dir, name+".sock")
	for {
		if err := p.serve(path); err != nil {
			return err
		}
	}
}

// serve binds a socket, registers, and returns when it has to do both again.
func (p *plugin) serve(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		time.Sleep(200 * time.Millisecond) // the directory is not there yet
		return nil
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // it may be another's by then
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()
	registered := ""
	for {
		now := identity(filepath.Join(p.dir, "kubelet.sock"))
		if registered == "" || now != "" && now != registered && !p.mood().Loner {
			if err := p.register(filepath.Base(path)); err == nil {
				registered = now
			}
		}
		if identity(path) == "" {
			return nil // another process has removed the socket, as a kubelet does when it starts
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// identity tells one file of a name from another; "" if there is none.
func identity(path string) string {
	var s unix.Stat_t
	if unix.Lstat(path, &s) != nil {
		return ""
	}
	return fmt.Sprint(s.Dev, s.Ino, s.Ctim)
}

func (p *plugin) register(endpoint string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	resource := resourceName
	if p.name == longPlugin {
		resource = longName
	}
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource,
	})
	return err
}

// mood returns how the plugin behaves. The one of the resource with a long name is always well.
func (p *plugin) mood() Mood {
	if p.name == longPlugin {
		return Mood{}
	}
	return readMood()
}

// devices returns what the plugin lists.
func (p *plugin) devices() []*pluginapi.Device {
	if p.name == longPlugin {
		return []*pluginapi.Device{{ID: longDevice, Health: pluginapi.Healthy}}
	}
	m := readMood()
	return slices.DeleteFunc(m.devices(), func(d *pluginapi.Device) bool { return m.Free && p.taken[hardware(d.ID)] })
}

func (p *plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	last := ""
	for stream.Context().Err() == nil {
		devices := p.devices()
		if now := fmt.Sprint(devices); now != last && p.name != mutePlugin {
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
				return err
			}
			last = now
		}
		time.Sleep(100 * time.Millisecond)
	}
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	m := p.mood()
	time.Sleep(m.Slow)
	if m.Errs {
		return nil, errors.New("the plugin is in a bad mood")
	}
	answer := &pluginapi.AllocateResponse{}
	for _, c := range request.ContainerRequests {
		grant := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{devicesVariable: strings.Join(c.DevicesIds, ",")}}
		for _, id := range c.DevicesIds {
			if m.Bad > 0 && hardware(id) == fmt.Sprint(m.Bad-1) {
				return nil, fmt.Errorf("device %s cannot be had", id)
			}
			grant.Devices = append(grant.Devices, &pluginapi.DeviceSpec{HostPath: hostNode(hardware(id)), ContainerPath: "/dev/chaos-" + id, Permissions: "rw"})
		}
		if m.Share {
			grant.Mounts = []*pluginapi.Mount{{HostPath: hostLibs, ContainerPath: "/libs", ReadOnly: true}}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, grant)
	}
	return answer, nil
}
