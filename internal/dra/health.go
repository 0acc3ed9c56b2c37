package dra

import (
	"maps"
	"time"

	"google.golang.org/grpc"
	health "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// healthInterval is the least time between two reports.
	healthInterval = time.Second
	// healthHolds is for how long the kubelet believes a report: then the pod's status says Unknown. healthAgain is when devmgrd repeats one.
	healthHolds = 15 * time.Minute
	healthAgain = 5 * time.Minute
	// maxHealthMessage is the kubelet's limit.
	maxHealthMessage = 1024
)

// healthVersions are the versions of the kubelet's health service, newest first. Their messages are the same: v1 is Kubernetes 1.37's name of
// v1alpha1, which 1.40 no longer knows.
var healthVersions = []string{"v1.DRAResourceHealth", health.DRAResourceHealth_ServiceDesc.ServiceName}

// registerHealth makes a server answer in all versions.
func registerHealth(g *grpc.Server, s health.DRAResourceHealthServer) {
	for _, name := range healthVersions {
		of := health.DRAResourceHealth_ServiceDesc
		of.ServiceName = name
		g.RegisterService(&of, s)
	}
}

// NodeWatchResources reports the health of the devices that pods have by claims: now, at each change, and after healthAgain without one. The
// kubelet shows it in the status of pods with claims of their own.
func (s *Server) NodeWatchResources(_ *health.NodeWatchResourcesRequest, stream grpc.ServerStreamingServer[health.NodeWatchResourcesResponse]) error {
	ctx := stream.Context()
	var last map[result]reported
	for {
		updated, changed := s.Claims.Inventory.Updated(), s.Claims.Changed() // before anything is read
		if now := s.Claims.health(); last == nil || !maps.Equal(last, now) {
			if err := stream.Send(healthOf(now)); err != nil {
				return err
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-updated:
		case <-changed:
		case <-time.After(s.healthAgain):
			last = nil
		}
		select { // a burst of changes is one report
		case <-ctx.Done():
			return nil
		case <-time.After(healthInterval):
		}
	}
}

// reported is the health of one device.
type reported struct {
	status health.HealthStatus
	why    string
}

// health returns the health of the devices that pods of this node have by claims.
func (c *Claims) health() map[result]reported {
	c.mu.Lock()
	chosen, seen := map[result]device.Key{}, map[*claim]bool{}
	for _, p := range c.pods {
		for _, of := range p.claims {
			if seen[of] {
				continue
			}
			seen[of] = true
			for i, one := range of.results {
				if d := of.devices[i]; d.Resource != "" {
					chosen[result{pool: one.pool, device: one.device}] = d
				}
			}
		}
	}
	c.mu.Unlock()
	statuses := map[device.ResourceName]map[device.ID]device.DeviceStatus{}
	all := map[result]reported{}
	for one, d := range chosen {
		if statuses[d.Resource] == nil {
			statuses[d.Resource] = map[device.ID]device.DeviceStatus{}
			listed, _ := c.Inventory.Devices(d.Resource)
			for _, status := range listed {
				statuses[d.Resource][status.ID] = status
			}
		}
		status, known := statuses[d.Resource][d.ID]
		switch {
		case status.Vanished:
			all[one] = reported{health.HealthStatus_UNHEALTHY, "its device plugin has stopped listing it"}
		case !known || !status.Listed: // it may be in use and well: some plugins list only what is free
			all[one] = reported{health.HealthStatus_UNKNOWN, "its device plugin does not list it"}
		case !status.Healthy:
			all[one] = reported{health.HealthStatus_UNHEALTHY, "its device plugin reports it as unhealthy"}
		case status.Cordon != nil:
			all[one] = reported{health.HealthStatus_HEALTHY, device.ClipTo("cordoned: "+status.Cordon.Reason, maxHealthMessage)}
		default:
			all[one] = reported{health.HealthStatus_HEALTHY, ""}
		}
	}
	return all
}

// healthOf returns a report for the kubelet.
func healthOf(all map[result]reported) *health.NodeWatchResourcesResponse {
	answer, now := &health.NodeWatchResourcesResponse{}, time.Now().Unix()
	for one, is := range all {
		answer.Devices = append(answer.Devices, &health.DeviceHealth{
			Device: &health.DeviceIdentifier{PoolName: one.pool, DeviceName: one.device}, Health: is.status, Message: is.why,
			LastUpdatedTime: now, HealthCheckTimeoutSeconds: int64(healthHolds / time.Second),
		})
	}
	return answer
}
