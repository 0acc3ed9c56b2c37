package plugintest

import (
	"context"
	"os"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	watcherapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// The words of pluginregistration/v1, by which a manager's plugin watcher takes up plugins.
type (
	Info   = watcherapi.PluginInfo
	Status = watcherapi.RegistrationStatus
)

// An Announcement is a socket of its own on which a plugin serves pluginregistration/v1.
type Announcement struct {
	path   string
	server *server
}

// Announce serves the plugin's registration at path, in place of a file that is there. What GetInfo answers is
// Plugin.Info, or else a device plugin of this name at Plugin.Socket. The announcement ends with the plugin.
func (p *Plugin) Announce(path string) *Announcement {
	p.t.Helper()
	a := &Announcement{path: path, server: p.listen(path, false, true)}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.announce = append(p.announce, a)
	return a
}

// Withdraw ends the announcement and removes its socket.
func (a *Announcement) Withdraw() {
	a.server.end()
	_ = os.Remove(a.path) // the test may have done so
}

// Told returns what the plugin was told of its registration, in order.
func (p *Plugin) Told() []*Status {
	var told []*Status
	for _, r := range p.Requests() {
		if r.Method == Notify {
			told = append(told, r.Status)
		}
	}
	return told
}

// SetInfo makes GetInfo answer otherwise from now on.
func (p *Plugin) SetInfo(i *Info) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.Info = i
}

// registration is the plugin as the manager's watcher sees it.
type registration struct {
	watcherapi.UnimplementedRegistrationServer
	plugin *Plugin
}

func (r *registration) GetInfo(ctx context.Context, _ *watcherapi.InfoRequest) (*Info, error) {
	p := r.plugin
	if err := p.seen(ctx, Request{Method: GetInfo}); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Info != nil {
		return p.Info, nil
	}
	return &Info{Type: watcherapi.DevicePlugin, Name: p.Resource, Endpoint: p.Socket(), SupportedVersions: []string{pluginapi.Version}}, nil
}

func (r *registration) NotifyRegistrationStatus(ctx context.Context, s *Status) (*watcherapi.RegistrationStatusResponse, error) {
	if err := r.plugin.seen(ctx, Request{Method: Notify, Status: s}); err != nil {
		return nil, err
	}
	return &watcherapi.RegistrationStatusResponse{}, nil
}
