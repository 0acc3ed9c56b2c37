package pluginrules

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// MaxFile bounds a rules file, in bytes.
const MaxFile = 1 << 20

// maxRules bounds the rules of a file, each of which is a series of the metric.
const maxRules = 1000

// Rules are the rules of a node, in the order in which they are tried. They are never edited.
type Rules struct {
	Rules []Rule `yaml:"rules"`
}

// A Rule says which plugins may serve some resources, and what these may grant.
type Rule struct {
	Name      string   `yaml:"name"`
	Resources []string `yaml:"resources"` // patterns
	// Plugins are those that may serve the resources; nil: any plugin, empty: none.
	Plugins []Plugin `yaml:"plugins"`
	// Grants are what the plugins may grant; nil: anything.
	Grants *Grants `yaml:"grants,omitempty"`
}

// A Plugin names the plugins of a namespace, of a service account in it, or of the host.
type Plugin struct {
	Namespace      string `yaml:"namespace,omitempty"`
	ServiceAccount string `yaml:"serviceAccount,omitempty"` // empty: any of the namespace
	Host           bool   `yaml:"host,omitempty"`           // no pod is known: on the host, or in the common directory
}

// Grants are patterns of what a plugin may grant. Nothing that none of them matches may be granted.
type Grants struct {
	Env         []string `yaml:"env,omitempty"`         // names of variables
	Mounts      []string `yaml:"mounts,omitempty"`      // paths on the host: these, and what is below them
	Devices     []string `yaml:"devices,omitempty"`     // likewise, or a kind and a major number, like c:195
	Annotations []string `yaml:"annotations,omitempty"` // keys
	CDIKinds    []string `yaml:"cdiKinds,omitempty"`    // vendor/class
}

// Parse reads a rules file. The error names each mistake in it, on a line of its own.
func Parse(text []byte) (*Rules, error) {
	if len(text) > MaxFile {
		return nil, fmt.Errorf("the file has more than %d bytes", MaxFile)
	}
	var r Rules
	var whole yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	err := decoder.Decode(&r)
	if err == nil {
		err = yaml.Unmarshal(text, &whole)
	}
	if err == nil && !errors.Is(decoder.Decode(new(yaml.Node)), io.EOF) {
		err = errors.New("there is more than one YAML document in it")
	}
	if err != nil && !errors.Is(err, io.EOF) { // an empty file has no rules
		return nil, mistakes(err)
	}
	if len(r.Rules) > maxRules {
		return nil, fmt.Errorf("there are %d rules; at most %d are taken", len(r.Rules), maxRules)
	}
	if err := errors.Join(empty("", &whole)...); err != nil {
		return nil, err
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	return &r, nil
}

// mistakes returns the decoder's errors, each on a line of its own.
func mistakes(err error) error {
	wrong, ok := errors.AsType[*yaml.TypeError](err)
	if !ok {
		return errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var all []error
	for _, text := range wrong.Errors {
		all = append(all, errors.New(strings.NewReplacer(" in type pluginrules.", " in ", "pluginrules.", "").Replace(text)))
	}
	return errors.Join(all...)
}

// empty returns a mistake for each key without a value. A key that is left out means that nothing is checked, which a key with nothing
// behind it hardly means.
func empty(key string, n *yaml.Node) (all []error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return []error{fmt.Errorf("line %d: %s has no value; write [] or {} if nothing is allowed, or leave it out if it is not to be checked", n.Line, key)}
	case n.Kind == yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			all = append(all, empty(n.Content[i].Value, n.Content[i+1])...)
		}
		return all
	}
	for _, below := range n.Content {
		all = append(all, empty(key, below)...)
	}
	return all
}

// check returns what is wrong with the rules.
func (r *Rules) check() error {
	var all []error
	names, patterns := map[string]bool{}, map[string]string{}
	for i, rule := range r.Rules {
		wrong := func(format string, args ...any) {
			name := fmt.Sprintf("rules[%d]", i)
			if rule.Name != "" {
				name += fmt.Sprintf(" (%s)", device.Clip(rule.Name))
			}
			all = append(all, fmt.Errorf("%s: %s", name, fmt.Sprintf(format, args...)))
		}
		switch {
		case rule.Name == "" || len(rule.Name) > 63 || strings.Trim(rule.Name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "":
			wrong("name: %q is not a name; write at most 63 lower-case letters, digits, '-' and '.'", device.Clip(rule.Name))
		case rule.Name == noRule:
			wrong("name: %q stands for resources without a rule; choose another name", noRule)
		case names[rule.Name]:
			wrong("name: another rule has it; choose another name")
		}
		names[rule.Name] = true
		if len(rule.Resources) == 0 {
			wrong("resources: there is none; name them like vendor.example/gpu, or vendor.example/* for all of a domain")
		}
		for j, p := range rule.Resources {
			switch {
			case !wellFormed(p) || strings.Count(p, "/") != 1:
				wrong("resources[%d]: %q is no pattern of a resource's name; write it like vendor.example/gpu, or vendor.example/*", j, device.Clip(p))
			case patterns[p] != "":
				wrong("resources[%d]: %q is in rule %s already, which decides", j, device.Clip(p), patterns[p])
			default:
				patterns[p] = rule.Name
			}
		}
		for j, p := range rule.Plugins {
			switch {
			case p.Host && p.Namespace+p.ServiceAccount != "":
				wrong("plugins[%d]: a plugin of the host has no namespace and no service account; make two entries", j)
			case !p.Host && p.Namespace == "":
				wrong("plugins[%d]: it names no namespace; write namespace: NAME, or host: true", j)
			}
		}
		if g := rule.Grants; g != nil {
			for j, p := range g.Env {
				if !wellFormed(p) || strings.Contains(p, "=") {
					wrong("grants.env[%d]: %q is no pattern of a variable's name; write it like VENDOR_*", j, device.Clip(p))
				}
			}
			for j, p := range g.Mounts {
				if !wellFormedPath(p) {
					wrong("grants.mounts[%d]: %q is no pattern of an absolute path without detours; write it like /usr/lib/vendor", j, device.Clip(p))
				}
			}
			for j, p := range g.Devices {
				if _, _, err := parseMajor(p); !wellFormedPath(p) && err != nil {
					wrong("grants.devices[%d]: %q is neither a pattern of an absolute path nor a major number; write it like /dev/vendor[0-9]*, or c:195", j, device.Clip(p))
				}
			}
			for j, p := range g.Annotations {
				if !wellFormed(p) {
					wrong("grants.annotations[%d]: %q is no pattern of an annotation's key; write it like vendor.example/*", j, device.Clip(p))
				}
			}
			for j, p := range g.CDIKinds {
				if !wellFormed(p) || strings.Count(p, "/") != 1 || strings.Contains(p, "=") {
					wrong("grants.cdiKinds[%d]: %q is no kind of CDI devices; write it like vendor.example/gpu", j, device.Clip(p))
				}
			}
		}
	}
	return errors.Join(all...)
}

func wellFormed(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err == nil && pattern != "" && !strings.ContainsAny(pattern, "\x00\n")
}

// wellFormedPath reports whether each name in a pattern of a path is well formed: a class has no slash.
func wellFormedPath(pattern string) bool {
	if pattern == "/" {
		return true
	}
	names, absolute := strings.CutPrefix(pattern, "/")
	return absolute && path.Clean(pattern) == pattern && !slices.ContainsFunc(strings.Split(names, "/"), func(name string) bool { return !wellFormed(name) })
}

// parseMajor reads c:MAJOR or b:MAJOR.
func parseMajor(s string) (kind string, major int64, err error) {
	kind, number, _ := strings.Cut(s, ":")
	if kind != "c" && kind != "b" {
		return "", 0, errors.New("it is no kind of device")
	}
	major, err = strconv.ParseInt(number, 10, 32)
	if err == nil && major < 0 {
		err = errors.New("it is negative")
	}
	return kind, major, err
}

// noRule stands for the name of a rule where there is none.
const noRule = "none"

// A Violation is what a rule does not allow.
type Violation struct {
	Rule    string // its name; noRule: no rule is for the resource
	Subject string // "registration" or "grant"
	Message string
}

func (v *Violation) Error() string { return v.Message }

// of returns the rule that decides about a resource, or nil.
func (r *Rules) of(resource device.ResourceName) *Rule {
	i := slices.IndexFunc(r.Rules, func(rule Rule) bool { return matchesAny(rule.Resources, string(resource)) })
	if i < 0 {
		return nil
	}
	return &r.Rules[i]
}

// Serve returns why a plugin may not serve a resource, or nil. A pod whose service account is not known has none that a rule names.
func (r *Rules) Serve(resource device.ResourceName, by device.PluginPod) *Violation {
	rule := r.of(resource)
	switch {
	case rule == nil:
		return &Violation{noRule, "registration", fmt.Sprintf("no rule lets a plugin serve %s; if %s may, add a rule", resource, who(by))}
	case rule.Plugins == nil, slices.ContainsFunc(rule.Plugins, func(p Plugin) bool { return p.matches(by) }):
		return nil
	}
	return &Violation{rule.Name, "registration", fmt.Sprintf("rule %s does not let %s serve %s", rule.Name, who(by), resource)}
}

// needsAccount reports whether the rule of a resource asks for the service account of pods in a namespace.
func (r *Rules) needsAccount(resource device.ResourceName, namespace string) bool {
	rule := r.of(resource)
	return rule != nil && slices.ContainsFunc(rule.Plugins, func(p Plugin) bool {
		return p.Namespace == namespace && p.ServiceAccount != ""
	})
}

func (p Plugin) matches(by device.PluginPod) bool {
	if !by.Known() {
		return p.Host
	}
	return !p.Host && p.Namespace == by.Namespace && (p.ServiceAccount == "" || p.ServiceAccount == by.ServiceAccount)
}

// who names a plugin by what rules look at.
func who(p device.PluginPod) string {
	if !p.Known() {
		return "a plugin of the host"
	}
	return fmt.Sprintf("the plugin of pod %s (service account %s)", p.Pod, cmp.Or(p.ServiceAccount, "not known"))
}

// Grant returns why a plugin may not grant something, or nil. It looks at names and paths as they are, and not at the host: a device
// that a path does not allow may be allowed by its number, see Device.
func (r *Rules) Grant(resource device.ResourceName, g device.Grant) *Violation {
	rule := r.of(resource)
	if rule == nil {
		return &Violation{noRule, "grant", fmt.Sprintf("no rule lets a plugin grant anything for %s", resource)}
	}
	may := rule.Grants
	if may == nil {
		return nil
	}
	var all []string
	add := func(what, name string) { all = append(all, what+" "+device.Clip(name)) }
	for _, name := range slices.Sorted(maps.Keys(g.Env)) {
		if !matchesAny(may.Env, name) {
			add("variable", name)
		}
	}
	for _, m := range g.Mounts {
		if !coversAny(may.Mounts, m.HostPath) {
			add("mount of", m.HostPath)
		}
	}
	byMajor := slices.ContainsFunc(may.Devices, func(p string) bool { return !strings.HasPrefix(p, "/") })
	for _, n := range g.Nodes {
		if !byMajor && !coversAny(may.Devices, n.HostPath) {
			add("device", n.HostPath)
		}
	}
	names := slices.Clone(g.CDI)
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		switch {
		case strings.HasPrefix(key, device.CDIAnnotations): // it does not reach the container
			names = append(names, strings.Split(g.Annotations[key], ",")...)
		case !matchesAny(may.Annotations, key):
			add("annotation", key)
		}
	}
	for _, name := range names {
		if !matchesAny(may.CDIKinds, kindOf(name)) {
			add("CDI device", name)
		}
	}
	return rule.forbids(resource, all)
}

// Mount returns why the host's path to which a granted mount source leads may not be mounted, or nil.
func (r *Rules) Mount(resource device.ResourceName, granted, real string) *Violation {
	rule := r.of(resource)
	if rule == nil || rule.Grants == nil || coversAny(rule.Grants.Mounts, real) {
		return nil // without a rule Grant has refused already
	}
	return rule.forbids(resource, []string{"mount of " + device.Clip(granted) + ", which leads to " + device.Clip(real)})
}

// Device returns why a device of the host to which a granted path leads may not be granted, or nil.
func (r *Rules) Device(resource device.ResourceName, granted string, n device.HostNode) *Violation {
	rule := r.of(resource)
	switch {
	case rule == nil || rule.Grants == nil:
		return nil
	case coversAny(rule.Grants.Devices, granted) && coversAny(rule.Grants.Devices, n.Path):
		return nil
	case slices.ContainsFunc(rule.Grants.Devices, func(p string) bool {
		kind, major, err := parseMajor(p)
		return err == nil && kind == n.Kind && major == n.Major
	}):
		return nil
	}
	what := "device " + device.Clip(granted)
	if granted != n.Path {
		what += ", which leads to " + device.Clip(n.Path)
	}
	return rule.forbids(resource, []string{fmt.Sprintf("%s (%s:%d)", what, n.Kind, n.Major)})
}

// maxNamed bounds how many parts of a grant a message names.
const maxNamed = 4

func (rule *Rule) forbids(resource device.ResourceName, what []string) *Violation {
	if len(what) == 0 {
		return nil
	}
	message := fmt.Sprintf("rule %s does not allow what the plugin of %s grants: %s", rule.Name, resource, strings.Join(lists.First(what, maxNamed), ", "))
	return &Violation{rule.Name, "grant", message}
}
