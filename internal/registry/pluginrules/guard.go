package pluginrules

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// Notifier reports violations of rules that are not enforced, and registrations that are refused. It returns at once.
type Notifier interface {
	// NotAllowed reports on a pod, or on the Node if the pod has no UID.
	NotAllowed(pod device.Pod, why string)
}

// Config is what New needs. Rules and Enforce may be left out.
type Config struct {
	Rules    *Rules // nil: nothing is checked
	Enforce  bool   // refuse what the rules do not allow; else it is only reported
	Notifier Notifier
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// A Guard has the rules of a node kept. Its methods may be called at any time, and return at once.
type Guard struct {
	cfg        Config
	violations *prometheus.CounterVec
	seen       memory

	mu   locks.Mutex[locks.Leaf]
	told map[string]bool // violations that have been reported
}

// maxTold bounds the violations that are known as reported.
const maxTold = 4096

// New makes a Guard.
func New(cfg Config) *Guard {
	if cfg.Notifier == nil || cfg.Log == nil || cfg.Metrics == nil {
		panic("pluginrules: Notifier, Log and Metrics are required")
	}
	g := &Guard{cfg: cfg, told: map[string]bool{}, violations: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "devmgrd_plugin_rule_violations_total",
		Help: "Violations of plugins.rules, by rule (none: no rule is for the resource) and subject, registration or grant. Repetitions by one pod count once.",
	}, []string{"rule", "subject"})}
	cfg.Metrics.MustRegister(g.violations)
	if cfg.Rules != nil {
		for _, subject := range []string{"registration", "grant"} {
			for _, rule := range cfg.Rules.Rules {
				g.violations.WithLabelValues(rule.Name, subject)
			}
			g.violations.WithLabelValues(noRule, subject)
		}
	}
	return g
}

// NeedsAccount reports whether the rules ask for the service account of a pod that serves a resource.
func (g *Guard) NeedsAccount(resource device.ResourceName, pod device.Pod) bool {
	return g.cfg.Rules != nil && g.cfg.Rules.needsAccount(resource, pod.Namespace)
}

// MayServe returns a *device.Refusal if a plugin may not serve a resource.
func (g *Guard) MayServe(resource device.ResourceName, by device.PluginPod) error {
	if g.cfg.Rules == nil {
		return nil
	}
	v := g.cfg.Rules.Serve(resource, by)
	if v == nil {
		return nil
	}
	if g.news(v, by.Pod, "") {
		g.cfg.Log.Warn("plugin not allowed by rule", "resource", resource, "rule", v.Rule, "pod", by.String(), "enforced", g.cfg.Enforce, "why", v.Message)
		g.cfg.Notifier.NotAllowed(by.Pod, v.Message+g.consequence())
	}
	return g.refuse(v)
}

// MayGrant returns a *device.Refusal if a plugin may not grant this to a container.
func (g *Guard) MayGrant(to device.PodContainer, resource device.ResourceName, grant device.Grant) error {
	if g.cfg.Rules == nil {
		return nil
	}
	return g.judge(to, resource, g.cfg.Rules.Grant(resource, grant))
}

// MayMount returns a *device.Refusal if the host's path to which a granted mount source leads may not be mounted.
func (g *Guard) MayMount(to device.PodContainer, resource device.ResourceName, granted, real string) error {
	if g.cfg.Rules == nil {
		return nil
	}
	return g.judge(to, resource, g.cfg.Rules.Mount(resource, granted, real))
}

// MayHave returns a *device.Refusal if a device of the host to which a granted path leads may not be granted.
func (g *Guard) MayHave(to device.PodContainer, resource device.ResourceName, granted string, n device.HostNode) error {
	if g.cfg.Rules == nil {
		return nil
	}
	return g.judge(to, resource, g.cfg.Rules.Device(resource, granted, n))
}

// judge reports a grant that breaks a rule, and refuses it where rules are enforced.
func (g *Guard) judge(to device.PodContainer, resource device.ResourceName, v *Violation) error {
	if v == nil {
		return nil
	}
	if g.news(v, to.Pod, to.Name) {
		g.cfg.Log.Warn("grant not allowed by rule", "resource", resource, "rule", v.Rule, "pod", to.Pod.String(), "container", to.Name,
			"enforced", g.cfg.Enforce, "why", v.Message)
		if !g.cfg.Enforce { // else the pod waits, which is an event
			g.cfg.Notifier.NotAllowed(to.Pod, "container "+to.Name+": "+v.Message+g.consequence())
		}
	}
	return g.refuse(v)
}

func (g *Guard) consequence() string {
	if g.cfg.Enforce {
		return ""
	}
	return " (plugins.rules is report: nothing was refused)"
}

func (g *Guard) refuse(v *Violation) error {
	if !g.cfg.Enforce {
		return nil
	}
	return device.Refuse(device.PluginNotAllowed, nil, "%s", v.Message)
}

// news counts a violation if it is a new one of the pod's, and reports whether it is.
func (g *Guard) news(v *Violation, pod device.Pod, container string) bool {
	key := string(pod.UID) + "\x00" + container + "\x00" + v.Message
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.told[key] {
		return false
	}
	if len(g.told) >= maxTold {
		clear(g.told)
	}
	g.told[key] = true
	g.violations.WithLabelValues(v.Rule, v.Subject).Inc()
	return true
}

// Granted notes what a plugin has granted, for Seen.
func (g *Guard) Granted(resource device.ResourceName, ids []device.ID, grant device.Grant) {
	g.seen.note(resource, ids, grant)
}

// Seen returns what plugins have granted since devmgrd's start, and what containers had then.
func (g *Guard) Seen() []device.PluginGrants { return g.seen.list() }
