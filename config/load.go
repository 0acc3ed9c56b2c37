package config

import (
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Default is the source of a default value.
const Default = "default"

const envPrefix = "DEVMGRD_"

// Options are the sources of the configuration.
type Options struct {
	File    string   // must exist; empty: DefaultFile, which need not
	Set     []string // key=value, as in --set; wins over everything else
	Environ []string // as os.Environ returns it; wins over the file
	// Warn is called for each deprecated key that is set; nil: it need not be known.
	Warn func(Mistake)
}

// Sources holds the source of each key's value: Default, file:line, the name of an environment variable, or --set.
type Sources map[string]string

// Load reads, merges and checks the configuration. Every mistake is in the *Error it returns.
func Load(o Options) (Config, Sources, error) {
	return load(o, machine{o.Environ, os.Hostname}, deprecations())
}

// A setting is one source's value of one key: a text or, in a file, a list of texts.
type setting struct {
	value  any
	source string
}

// load is Load for a given machine and table of deprecated keys.
func load(o Options, m machine, deprecated []deprecation) (Config, Sources, error) {
	c := defaults()
	all := fields(&c)
	known := map[string]field{}
	for _, f := range all {
		known[f.key] = f
	}

	accept(deprecated, known)

	// Each layer overrides the ones before it. viper holds and decodes the values.
	v := viper.NewWithOptions(viper.KeyDelimiter("."))
	from := Sources{}
	for _, f := range all {
		v.SetDefault(f.key, f.plain())
		from[f.key] = Default
	}
	var mistakes []Mistake
	for _, layer := range []func(map[string]field) (map[string]setting, []Mistake){
		o.fromFile, o.fromEnviron, o.fromFlags,
	} {
		settings, wrong := layer(known)
		warnings, twice := replace(deprecated, settings)
		mistakes = slices.Concat(mistakes, wrong, twice)
		for _, w := range warnings {
			if o.Warn != nil {
				o.Warn(w)
			}
		}
		for key, s := range settings {
			v.Set(key, s.value)
			from[key] = s.source
		}
	}

	broken := map[string]bool{} // unreadable values, for which no rule is checked
	for _, f := range all {
		if err := v.UnmarshalKey(f.key, f.value.Addr().Interface(), viper.DecodeHook(decodeText)); err != nil {
			what, remedy := f.form()
			mistakes = append(mistakes, Mistake{f.key, from[f.key], quote(v.Get(f.key)) + " is not " + what, remedy})
			broken[f.key] = true
		}
	}
	c.derive(m, from)
	for _, wrong := range c.check() {
		if !broken[wrong.Key] {
			wrong.Source = from[wrong.Key]
			mistakes = append(mistakes, wrong)
		}
	}
	if err := refuse(mistakes); err != nil {
		return Config{}, nil, err
	}
	return c, from, nil
}

// decodeText converts the text of one value to a duration, a list or values by name; plain kinds need no hook.
var decodeText = mapstructure.ComposeDecodeHookFunc(
	mapstructure.StringToTimeDurationHookFunc(),
	listHook,
	mapHook,
)

// fromEnviron reads DEVMGRD_ variables.
func (o Options) fromEnviron(known map[string]field) (map[string]setting, []Mistake) {
	keys := map[string]string{} // by variable
	for key, f := range known {
		keys[f.env()] = key
	}
	settings := map[string]setting{}
	var mistakes []Mistake
	for _, e := range o.Environ {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, envPrefix) {
			continue
		}
		key, ok := keys[name]
		if !ok {
			mistakes = append(mistakes, unknown(name, "environment", slices.Collect(maps.Keys(keys))))
			continue
		}
		settings[key] = setting{value, name}
	}
	return settings, mistakes
}

// fromFlags reads --set key=value; the last one of a key wins.
func (o Options) fromFlags(known map[string]field) (map[string]setting, []Mistake) {
	settings := map[string]setting{}
	var mistakes []Mistake
	for _, s := range o.Set {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			mistakes = append(mistakes, Mistake{"", "--set", quote(s) + " has no =", "write it like --set log.level=debug"})
			continue
		}
		if _, ok := known[key]; !ok {
			mistakes = append(mistakes, unknown(key, "--set", slices.Collect(maps.Keys(known))))
			continue
		}
		settings[key] = setting{value, "--set"}
	}
	return settings, mistakes
}

// unknown returns the mistake of an unknown key.
func unknown(key, source string, candidates []string) Mistake {
	slices.Sort(candidates)
	m := Mistake{Key: key, Source: source, Problem: "there is no such key", Remedy: "remove it"}
	if near, ok := nearest(key, candidates); ok {
		m.Remedy = "did you mean " + near + "?"
	}
	return m
}

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
