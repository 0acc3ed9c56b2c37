package pluginrules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An Observation is one resource as a node has seen it.
type Observation struct {
	Resource device.ResourceName
	Plugins  []device.PluginPod   // those that serve it; a zero one is of the host
	Granted  *device.PluginGrants // nil: nothing has been granted
}

// A Host answers about its files.
type Host interface {
	// Resolve returns a path without links; the path itself if there is nothing.
	Resolve(path string) string
	// Node returns the device node at a path; false: there is none.
	Node(path string) (device.HostNode, bool)
}

// Suggest returns a rules file that allows what a node has seen, and as little more as patterns allow.
func Suggest(node string, at time.Time, all []Observation, host Host) ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Rules for device plugins: the plugins and grants of node %s at %s.\n"+
		"# Read each line: the rules also allow an attacker's earlier grants. Then write the file to plugins.rulesFile,\n"+
		"# set plugins.rules to report, and then to enforce when there are no further reports.\n", node, at.UTC().Format(time.RFC3339))
	if len(all) == 0 {
		b.WriteString("# No device plugin has registered.\nrules: []\n")
		return b.Bytes(), nil
	}
	b.WriteString("rules:\n")
	names := map[string]bool{}
	for _, o := range all {
		rule := Rule{Name: nameFor(o.Resource, names), Resources: []string{escape(string(o.Resource))}, Plugins: pluginsOf(o.Plugins)}
		var notes []string
		if slices.ContainsFunc(rule.Plugins, func(p Plugin) bool { return p.Host }) {
			notes = append(notes, "host: plugins on the host, and pods that share the directory of the host's plugins.")
		}
		if slices.ContainsFunc(rule.Plugins, func(p Plugin) bool { return !p.Host && p.ServiceAccount == "" }) {
			notes = append(notes, "The service account of a plugin is not known: any one of the namespace may serve the resource.")
		}
		switch {
		case o.Granted == nil:
			notes = append(notes, "No container has had this resource since devmgrd's start: what its plugin grants is not checked.")
		case o.Granted.Full:
			notes = append(notes, "More has been granted than is remembered: add what is missing.")
		}
		if o.Granted != nil {
			rule.Grants = &Grants{
				Env: patternsOf(o.Granted.Env, nil), Annotations: patternsOf(o.Granted.Annotations, nil), CDIKinds: patternsOf(o.Granted.CDIKinds, nil),
				Mounts: patternsOf(o.Granted.Mounts, host), Devices: patternsOf(o.Granted.Devices, host),
			}
		}
		for _, n := range notes {
			fmt.Fprintf(&b, "# %s\n", n)
		}
		e := yaml.NewEncoder(&b)
		e.SetIndent(2)
		if err := errors.Join(e.Encode([]Rule{rule}), e.Close()); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// nameFor returns a name for the rule of a resource that no other rule has.
func nameFor(resource device.ResourceName, taken map[string]bool) string {
	plain := strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-.", r) {
			return r
		}
		return '-'
	}, strings.ToLower(string(resource)))
	plain = strings.Trim(plain[max(0, len(plain)-58):], "-.")
	name := plain
	for i := 2; taken[name] || name == noRule; i++ {
		name = fmt.Sprintf("%s-%d", plain, i)
	}
	taken[name] = true
	return name
}

func pluginsOf(pods []device.PluginPod) []Plugin {
	all := []Plugin{}
	for _, p := range pods {
		one := Plugin{Host: !p.Known(), Namespace: p.Namespace, ServiceAccount: p.ServiceAccount}
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	slices.SortFunc(all, func(a, b Plugin) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.ServiceAccount, b.ServiceAccount))
	})
	return all
}

// patternsOf returns the patterns of names, and of the paths to which they lead on the host.
func patternsOf(names []device.GrantName, host Host) []string {
	var all []string
	for _, n := range names {
		all = append(all, n.Pattern)
		if host == nil {
			continue
		}
		if real := host.Resolve(n.Text); real != n.Text {
			all = append(all, generalize(real, nil))
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// escape returns a pattern that matches one name only.
func escape(name string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(name)
}

// Audit returns what the rules do not allow of what a node has seen.
func (r *Rules) Audit(o Observation, host Host) []*Violation {
	var all []*Violation
	add := func(v *Violation) {
		if v != nil && !slices.ContainsFunc(all, func(other *Violation) bool { return *other == *v }) {
			all = append(all, v)
		}
	}
	for _, p := range o.Plugins {
		add(r.Serve(o.Resource, p))
	}
	if o.Granted == nil {
		return all
	}
	grant := func(g device.Grant) *Violation {
		v := r.Grant(o.Resource, g)
		add(v)
		return v
	}
	for _, n := range o.Granted.Env {
		grant(device.Grant{Env: map[string]string{n.Text: ""}})
	}
	for _, n := range o.Granted.Annotations {
		grant(device.Grant{Annotations: map[string]string{n.Text: ""}})
	}
	for _, n := range o.Granted.CDIKinds {
		grant(device.Grant{CDI: []string{n.Text + "=any"}})
	}
	for _, n := range o.Granted.Mounts {
		if grant(device.Grant{Mounts: []device.Mount{{HostPath: n.Text}}}) == nil {
			add(r.Mount(o.Resource, n.Text, host.Resolve(n.Text)))
		}
	}
	for _, n := range o.Granted.Devices {
		if grant(device.Grant{Nodes: []device.Node{{HostPath: n.Text}}}) != nil {
			continue
		}
		if node, is := host.Node(n.Text); is {
			add(r.Device(o.Resource, n.Text, node))
		}
	}
	return all
}
