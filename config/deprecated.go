package config

// A deprecation is a key that was released, and that is accepted for two minor releases more (docs/compatibility.md).
type deprecation struct {
	key   string
	since string // the release that announced it: "0.3.0"
	now   string // the key that has its meaning and its type today; empty: it has no effect
}

// deprecations are the keys that are accepted with a warning. A key that is renamed or removed gets a row, and loses it with the third
// minor release after that.
func deprecations() []deprecation { return nil }

// accept adds the deprecated keys to those that the sources may set: each with the type of the key that replaces it.
func accept(table []deprecation, known map[string]field) {
	for _, d := range table {
		known[d.key] = field{d.key, known[d.now].value}
	}
}

// replace moves the values of deprecated keys in one source to the keys that replace them. It returns a warning for each, and a mistake for
// each key that the source sets under both names.
func replace(table []deprecation, settings map[string]setting) (warnings, mistakes []Mistake) {
	for _, d := range table {
		s, set := settings[d.key]
		if !set {
			continue
		}
		delete(settings, d.key)
		warning := Mistake{d.key, s.source, "is deprecated since " + d.since + " and has no effect", "remove it"}
		if d.now != "" {
			warning.Problem, warning.Remedy = "is deprecated since "+d.since, "rename it to "+d.now
			if other, both := settings[d.now]; both {
				mistakes = append(mistakes, Mistake{d.key, s.source, "is the former name of " + d.now + ", which is set in " + other.source, "remove " + d.key})
				continue
			}
			settings[d.now] = s
		}
		warnings = append(warnings, warning)
	}
	return warnings, mistakes
}
