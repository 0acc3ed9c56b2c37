package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
)

const (
	// maxRegisterBytes is far more than a request of Register has. A process may have many requests in line.
	maxRegisterBytes = 4 << 10
	// maxHeaderBytes bounds the headers of a request, and maxAnswerHeaders those of a plugin's answer: an error's text is one, in which bytes may count
	// three times. gRPC's own limit is 16 MiB for each.
	maxHeaderBytes   = 8 << 10
	maxAnswerHeaders = 32 << 10
)

// server is the Registration service on kubelet.sock.
type server struct {
	pluginapi.UnimplementedRegistrationServer
	registry *Registry
}

// Register registers a plugin. It returns when the registration is accepted; the plugin's stream is opened afterwards.
// Register ignores RegisterRequest.options and asks the plugin for its options, as the kubelet does.
func (s *server) Register(ctx context.Context, request *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	from := peercreds.Of[caller](ctx)
	d := from.directory
	if err := s.registry.register(ctx, from, request); err != nil {
		level := slog.LevelDebug
		if d.refusals.Allow() {
			level = slog.LevelWarn
		}
		d.log.Log(ctx, level, "registration refused", "resource", device.Clip(request.GetResourceName()),
			"endpoint", device.Clip(request.GetEndpoint()), "err", err)
		return nil, refusalStatus(err)
	}
	return &pluginapi.Empty{}, nil
}

func (r *Registry) register(ctx context.Context, from caller, request *pluginapi.RegisterRequest) error {
	id := r.nextNumber()
	resource, err := checkRequest(request)
	if err != nil {
		return err
	}
	l := newRegistration(r, id, resource, r.named(ctx, from.directory.location, resource), request.GetEndpoint())
	l.called(from.client)
	on, err := r.connectBack(ctx, l)
	if err != nil {
		return err
	}
	return r.install(l, on)
}

// install makes l its resource's registration. A plugin that was overtaken by a newer registration gets no error, as if it had
// been installed and replaced a moment later.
func (r *Registry) install(l *registration, on *session) error {
	loser, err := r.accept(l, on)
	for r.makeRoom(l.resource, err) {
		loser, err = r.accept(l, on)
	}
	if err != nil {
		on.close()
		if errors.Is(err, errOvertaken) {
			return nil
		}
		return err
	}
	l.log.Log(context.Background(), r.level(l, slog.LevelInfo), "plugin registered", "preStart", on.preStart, "prefers", on.prefers)
	if loser != "" {
		l.log.Warn("socket taken from another resource", "loser", loser)
	}
	return nil
}

// checkRequest makes all checks without side effects.
func checkRequest(request *pluginapi.RegisterRequest) (device.ResourceName, error) {
	if v := request.GetVersion(); v != pluginapi.Version {
		return "", &requestError{fmt.Sprintf("device plugin API version %q is not supported; supported: %s",
			device.Clip(v), strings.Join(pluginapi.SupportedVersions[:], ", "))}
	}
	resource, err := device.ParseResourceName(request.GetResourceName())
	if err != nil {
		return "", &requestError{err.Error()}
	}
	switch e := request.GetEndpoint(); {
	case e == "" || e == "." || e == ".." || strings.ContainsAny(e, "/\x00"):
		return "", &requestError{fmt.Sprintf("endpoint %q is not the name of a socket in the plugin directory; name it without a path", device.Clip(e))}
	case isOwn(e):
		return "", &requestError{fmt.Sprintf("endpoint %q is the registration socket; the plugin must listen on a socket of its own", e)}
	}
	return resource, nil
}

// connectBack opens a session with a plugin that has just registered. Some plugins call Register a moment before they listen. So
// connectBack, like the kubelet, dials until its time is up. It asks for the options once.
func (r *Registry) connectBack(ctx context.Context, l *registration) (_ *session, err error) {
	defer func() {
		if err != nil {
			r.registrationRefused(l.resource, err)
		}
	}()
	if err := r.checkRules(ctx, l); err != nil {
		return nil, err
	}
	if err := r.checkAcceptable(l); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.registerTimeout)
	defer cancel()
	var cause error // of the latest try that did not run out of time
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		on, err := r.connect(ctx, &l.location, l.endpoint)
		if err == nil {
			on.quota = r.quotaOf(on.process)
			if err := on.ask(ctx); err != nil {
				on.close()
				return nil, &optionsError{err}
			}
			return on, nil
		}
		if hopeless := new(socketError); errors.As(err, &hopeless) {
			return nil, err
		}
		// A dial that runs out of time says less than the one before; its timer may end before ctx does.
		if timeout := net.Error(nil); cause == nil || ctx.Err() == nil && !(errors.As(err, &timeout) && timeout.Timeout()) {
			cause = err
		}
		select {
		case <-ctx.Done():
			return nil, &dialError{endpoint: l.endpoint, err: cause}
		case <-time.After(pause):
		}
	}
}

var (
	errStopping  = errors.New("devmgrd is stopping; register again when kubelet.sock is recreated")
	errOvertaken = errors.New("a newer registration has been accepted meanwhile")
	errAgain     = errors.New("the plugin has registered again")
)

// A requestError reports an invalid request.
type requestError struct{ fault string }

func (e *requestError) Error() string { return e.fault }

// A dialError reports a plugin's socket on which no process answers.
type dialError struct {
	endpoint string
	err      error
}

func (e *dialError) Error() string {
	if errors.Is(e.err, fs.ErrNotExist) {
		where := " in the plugin directory"
		if filepath.IsAbs(e.endpoint) {
			where = ""
		}
		return fmt.Sprintf("failed to dial device plugin: there is no socket %q%s; the plugin must listen there before it registers",
			e.endpoint, where)
	}
	return fmt.Sprintf("failed to dial device plugin at %q: %v; the plugin must serve there before it registers", e.endpoint, e.err)
}

// An optionsError is GetDevicePluginOptions' failure. Its text is the kubelet's, which tests and operators search for.
type optionsError struct{ err error }

func (e *optionsError) Error() string {
	return "failed to get device plugin options: " + device.ClipTo(e.err.Error(), maxError)
}

// A fullError reports that plugins.maxResources is reached.
type fullError struct {
	resource device.ResourceName
	limit    int
}

func (e *fullError) Error() string {
	return fmt.Sprintf("%s exceeds plugins.maxResources (%d), and no registered resource is lost and out of use; "+
		"raise it, or forget one with devmgrd forget", e.resource, e.limit)
}

// A duplicateError reports a second plugin of a resource, or a second resource of a socket, where plugins.onDuplicate is reject.
type duplicateError struct{ fault string }

func (e *duplicateError) Error() string { return e.fault }

// refusalStatus returns the gRPC status of a refused registration.
func refusalStatus(err error) error {
	code := codes.Internal
	switch options := new(optionsError); {
	case errors.As(err, new(*requestError)):
		code = codes.InvalidArgument
	case errors.As(err, new(*barredError)):
		code = codes.PermissionDenied
	case errors.As(err, new(*quotaError)), errors.As(err, new(*fullError)):
		code = codes.ResourceExhausted
	case errors.As(err, &options) && status.Code(options.err) == codes.DeadlineExceeded:
		code = codes.DeadlineExceeded
	case errors.As(err, new(*socketError)), errors.As(err, &options):
		code = codes.FailedPrecondition
	case errors.As(err, new(*dialError)), errors.Is(err, errStopping):
		code = codes.Unavailable
	case errors.As(err, new(*duplicateError)):
		code = codes.AlreadyExists
	}
	return status.Error(code, err.Error())
}
