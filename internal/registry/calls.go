package registry

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Allocate calls Allocate of the resource's plugin for the container, and returns its answer, checked.
// The error is a *device.Refusal, or ctx's if that has ended.
func (r *Registry) Allocate(ctx context.Context, pod device.Pod, c device.Container, resource device.ResourceName, ids []device.ID) (device.Grant, error) {
	var given device.Grant
	request := &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: lists.Strings(ids)}}}
	call := call{name: "Allocate", resource: resource, timeout: r.cfg.AllocateTimeout, failure: device.PluginError}
	err := r.do(ctx, call, func(ctx context.Context, s *session) error {
		began := time.Now()
		answer, err := s.client.Allocate(identify(ctx, pod, c), request, grpc.MaxCallRecvMsgSize(maxAnswer))
		r.metrics.allocate.WithLabelValues(string(resource)).Observe(time.Since(began).Seconds())
		if err != nil {
			return err
		}
		if given, err = grant(answer, r.cfg.AllowedAnnotations); err != nil {
			return &nonsenseError{err}
		}
		if r.cfg.Rules == nil {
			return nil
		}
		if err := r.cfg.Rules.MayGrant(device.PodContainer{Pod: pod, Name: c.Name}, resource, given); err != nil {
			return err
		}
		r.cfg.Rules.Granted(resource, ids, given)
		return nil
	})
	return given, err
}

// PreStart asks the resource's plugin to prepare the devices for the container's next start. Call it if the Offer requires
// it. The error is a *device.Refusal, or ctx's if that has ended.
func (r *Registry) PreStart(ctx context.Context, pod device.Pod, c device.Container, resource device.ResourceName, ids []device.ID) error {
	call := call{name: "PreStartContainer", resource: resource, timeout: r.cfg.PreStartTimeout, failure: device.PreStartFailed}
	return r.do(ctx, call, func(ctx context.Context, s *session) error {
		_, err := s.client.PreStartContainer(identify(ctx, pod, c), &pluginapi.PreStartContainerRequest{DevicesIds: lists.Strings(ids)})
		return err
	})
}

// Prefer asks the resource's plugin for the best size devices among the available ones. The answer should contain the devices
// in must, which are available too. Prefer returns the answer unchecked; it may be empty. Call it only if the Offer says
// that the plugin has preferences. The error is a *device.Refusal, or ctx's if that has ended.
func (r *Registry) Prefer(ctx context.Context, pod device.Pod, c device.Container, resource device.ResourceName, available, must []device.ID, size int) ([]device.ID, error) {
	var likes []device.ID
	call := call{name: "GetPreferredAllocation", resource: resource, timeout: r.cfg.PreferredTimeout, failure: device.PluginError}
	err := r.do(ctx, call, func(ctx context.Context, s *session) error {
		answer, err := s.client.GetPreferredAllocation(identify(ctx, pod, c), preferredRequest(available, must, size), grpc.MaxCallRecvMsgSize(maxAnswer))
		if err != nil {
			return err
		}
		if likes, err = preferred(answer, r.cfg.MaxDevices); err != nil {
			return &nonsenseError{err}
		}
		return nil
	})
	return likes, err
}

// identify adds the container to the call's metadata. Other plugins ignore it.
func identify(ctx context.Context, pod device.Pod, c device.Container) context.Context {
	return metadata.AppendToOutgoingContext(ctx,
		"devmgrd-pod-namespace", pod.Namespace,
		"devmgrd-pod-name", pod.Name,
		"devmgrd-pod-uid", string(pod.UID),
		"devmgrd-container-name", c.Name,
	)
}

// A call is one call to a plugin.
type call struct {
	name     string
	resource device.ResourceName
	timeout  time.Duration
	failure  device.Reason // if the plugin answers with an error
}

// do waits for its turn and calls the plugin, both within the call's timeout. Like the kubelet it makes one call to a plugin at a
// time, since plugins are not written for concurrent calls.
func (r *Registry) do(caller context.Context, c call, ask func(context.Context, *session) error) error {
	s, refusal := r.serving(c.resource)
	if refusal != nil {
		return refusal
	}
	ctx, cancel := context.WithTimeout(caller, c.timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.over:
		return c.refuse(caller, s, errSessionOver)
	case <-ctx.Done():
		return c.refuse(caller, s, device.ErrNotAsked)
	}
	if err := ask(ctx, s); err != nil {
		return c.refuse(caller, s, err)
	}
	return nil
}

// serving returns the session of the resource's plugin, or why there is none.
func (r *Registry) serving(resource device.ResourceName) (*session, *device.Refusal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	switch {
	case s == nil:
		return nil, device.Refuse(device.PluginMissing, nil, "no plugin has registered %s", resource)
	case s.state != device.Serving && s.session != nil:
		return nil, device.Refuse(device.PluginStale, nil,
			"the plugin of %s (%s) is connected and has not listed its devices yet", resource, s.registration.where())
	case s.state == device.Lost:
		return nil, device.Refuse(device.PluginMissing, nil,
			"the plugin of %s (%s) has been away for longer than %s", resource, s.registration.where(), r.cfg.GracePeriod)
	case s.state == device.Stale:
		return nil, device.Refuse(device.PluginStale, nil,
			"the plugin of %s (%s) is away at the moment", resource, s.registration.where())
	}
	return s.session, nil
}

var errSessionOver = errors.New("the connection to it has ended")

// A nonsenseError reports an unusable answer.
type nonsenseError struct{ err error }

func (e *nonsenseError) Error() string { return e.err.Error() }

// refuse returns the refusal for a failed call.
func (c call) refuse(caller context.Context, s *session, err error) error {
	if caller.Err() != nil {
		return caller.Err()
	}
	over := false
	select {
	case <-s.over:
		over = true
	default:
	}
	message := device.ClipTo(status.Convert(err).Message(), maxError)
	if refusal, ok := errors.AsType[*device.Refusal](err); ok {
		return refusal
	}
	switch code := status.Code(err); {
	case errors.Is(err, device.ErrNotAsked):
		return device.Refuse(device.PluginSlow, err, "the plugin of %s could not be asked %s within %s", c.resource, c.name, c.timeout)
	case code == codes.DeadlineExceeded:
		return device.Refuse(device.PluginSlow, nil,
			"the plugin of %s did not answer %s within %s", c.resource, c.name, c.timeout)
	case errors.As(err, new(*nonsenseError)):
		return device.Refuse(device.PluginError, nil,
			"the plugin of %s returned an unusable answer to %s: %s", c.resource, c.name, device.ClipTo(err.Error(), maxError))
	case over, code == codes.Unavailable:
		return device.Refuse(device.PluginStale, nil,
			"the connection to the plugin of %s ended during %s: %s", c.resource, c.name, message)
	default:
		return device.Refuse(c.failure, nil,
			"the plugin of %s refused %s (%s): %s", c.resource, c.name, code, message)
	}
}
