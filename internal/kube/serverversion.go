package kube

import (
	"context"
	"log/slog"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const noPolicies = "pods without the annotation required-plugins.noderesource.dev/pod that are created while devmgrd is away start without their devices: there are no mutating admission policies"

// A ServerVersion learns which release the API server is, and what that release keeps devmgrd from doing.
type ServerVersion struct {
	client Client
	log    *slog.Logger
	limits atomic.Pointer[[]device.Limit]
}

// NewServerVersion returns a ServerVersion; Run asks the API server.
func NewServerVersion(c Client, log *slog.Logger) *ServerVersion {
	return &ServerVersion{client: c, log: log}
}

// Limits returns what the API server's release, such as "Kubernetes v1.33.4", keeps devmgrd from doing; nothing until the API server has
// answered.
func (r *ServerVersion) Limits() []device.Limit {
	if all := r.limits.Load(); all != nil {
		return *all
	}
	return nil
}

// Run asks until the API server has answered or refused once, then waits for ctx to end. An upgrade of the API server counts from
// devmgrd's next start.
func (r *ServerVersion) Run(ctx context.Context) error {
	pause := loops.Backoff{First: firstRetry, Last: lastRetry}
	for ctx.Err() == nil {
		err := r.ask(ctx)
		if err == nil || apierrors.IsForbidden(err) {
			break
		}
		pause.Wait(ctx)
	}
	<-ctx.Done()
	return nil
}

// ask asks once.
func (r *ServerVersion) ask(ctx context.Context) error {
	served, err := policy(ctx, r.client)
	if err != nil {
		return err
	}
	var release version.Info
	if err := getJSON(ctx, r.client, "/version", &release); err != nil {
		return err
	}
	if served == NoPolicy {
		limit := device.Limit{Release: "Kubernetes " + release.GitVersion, Text: noPolicies}
		r.log.Warn("API server lacks a feature", "release", limit.Release, "limit", limit.Text)
		r.limits.Store(&[]device.Limit{limit})
	}
	return nil
}
