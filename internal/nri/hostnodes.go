package nri

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// HostNodes finds the host's device nodes of grants.
type HostNodes struct{ checks *hostchecks.Checks }

// NewHostNodes returns a HostNodes.
func NewHostNodes(log *slog.Logger) *HostNodes { return &HostNodes{hostchecks.New(log)} }

// Of returns the device nodes of a resource's grant that exist now, without those that a CDI specification has for all of its devices. It fails if
// the host's file system does not answer before ctx ends, and if no specification has a CDI device.
func (h *HostNodes) Of(ctx context.Context, r device.ResourceName, g device.Grant) (all []device.HostNode, err error) {
	host := h.checks.For(string(r))
	add := func(path string) error {
		found, err := checkHost(ctx, host, "device", path, func() (hostDevices, error) { return hostDevicesAt(path) })
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		for _, one := range found.nodes {
			all = append(all, device.HostNode{Path: filepath.Join(path, one.path), Kind: one.kind, Major: one.major, Minor: one.minor})
		}
		return err
	}
	for _, n := range g.Nodes {
		if err := add(n.HostPath); err != nil {
			return nil, err
		}
	}
	if len(g.CDI) == 0 {
		return all, nil
	}
	nodes, err := checkHost(ctx, host, "CDI specifications of", strings.Join(g.CDI, ", "), func() ([]cdiNode, error) { return cdiOwnNodes(cdiDirs, g.CDI) })
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if err := add(cmp.Or(n.HostPath, n.Path)); err != nil {
			return nil, err
		}
	}
	return all, ctx.Err()
}
