package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/version"

	"github.com/devmgrd/devmgrd/internal/backoff"
)

// A Release learns which release the API server is, and what that release keeps devmgrd from doing.
type Release struct {
	client Client
	log    *slog.Logger
	known  atomic.Pointer[answer]
}

// answer is what an API server has said.
type answer struct {
	release string
	limits  []string
}

// NewRelease returns a Release; Run asks the API server.
func NewRelease(c Client, log *slog.Logger) *Release { return &Release{client: c, log: log} }

// Limits returns the API server's release, such as "Kubernetes v1.33.4", and what it keeps devmgrd from doing, a sentence each. Both are
// empty until the API server has answered.
func (r *Release) Limits() (release string, limits []string) {
	if a := r.known.Load(); a != nil {
		return a.release, a.limits
	}
	return "", nil
}

// Run asks until the API server has answered or refused once, then waits for ctx to end. An upgrade of the API server counts from
// devmgrd's next start.
func (r *Release) Run(ctx context.Context) error {
	pause := backoff.Backoff{First: firstRetry, Last: steady}
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
func (r *Release) ask(ctx context.Context) error {
	served, err := policy(ctx, r.client)
	if err != nil {
		return err
	}
	var release version.Info
	text, err := r.client.Get().AbsPath("/version").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &release)
	}
	if err != nil {
		return err
	}
	a := answer{release: "Kubernetes " + release.GitVersion}
	if served == NoPolicy {
		a.limits = []string{"pods without the annotation required-plugins.noderesource.dev/pod that are created while devmgrd is away start without their devices: there are no mutating admission policies"}
		r.log.Warn("Kubernetes too old for all features", "release", a.release, "limits", a.limits)
	}
	r.known.Store(&a)
	return nil
}
