package preflight

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/pelletier/go-toml/v2"

	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// CRIO is CRI-O's configuration in force.
type CRIO struct {
	Validator    bool     // the default validator is on
	Required     []string // plugins without which no container starts
	OCI          string   // the default runtime
	CgroupDriver string
	Err          error
}

// readCRIO asks CRI-O for its configuration over HTTP on its CRI socket, as "crio status config" does.
func readCRIO(ctx context.Context, path string) (CRIO, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return socket.Dial(ctx, path) }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://crio/config", nil)
	if err != nil {
		return CRIO{}, err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return CRIO{}, fmt.Errorf("asking CRI-O at %s for its configuration: %w", path, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, cri.MaxAnswer))
	if err != nil {
		return CRIO{}, fmt.Errorf("reading CRI-O's configuration from %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return CRIO{}, fmt.Errorf("reading CRI-O's configuration from %s: CRI-O answers %s", path, answer.Status)
	}
	var f struct {
		Crio struct {
			Runtime struct {
				Default       string `toml:"default_runtime"`
				CgroupManager string `toml:"cgroup_manager"`
			} `toml:"runtime"`
			NRI struct {
				Validator struct {
					Enable   bool     `toml:"nri_enable_default_validator"`
					Required []string `toml:"nri_validator_required_plugins"`
				} `toml:"default_validator"`
			} `toml:"nri"`
		} `toml:"crio"`
	}
	if err := toml.Unmarshal(text, &f); err != nil {
		return CRIO{}, fmt.Errorf("CRI-O's configuration, from %s: %w", path, err)
	}
	c := f.Crio
	return CRIO{Validator: c.NRI.Validator.Enable, Required: c.NRI.Validator.Required, OCI: c.Runtime.Default, CgroupDriver: c.Runtime.CgroupManager}, nil
}
