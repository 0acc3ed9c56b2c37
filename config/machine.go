package config

import "strings"

// A machine has the properties of the host on which defaults depend.
type machine struct {
	environ  []string
	hostname func() (string, error)
}

// nodeName returns $NODE_NAME, which pods commonly get through the downward API, else the host name in lower case,
// as the kubelet names its node. It returns the name's source as well.
func (m machine) nodeName() (name, source string) {
	for _, e := range m.environ {
		if name, ok := strings.CutPrefix(e, "NODE_NAME="); ok && name != "" {
			return name, "NODE_NAME"
		}
	}
	host, err := m.hostname()
	if err != nil {
		return "", Default // the check of nodeName has the remedy
	}
	return strings.ToLower(strings.TrimSpace(host)), Default
}
