package nri

import "strings"

// expand puts the values of a plugin's variables in the place of $(NAME) in a container's command line, for the names
// in refs: the kubelet expands what the pod's specification defines and leaves the other references as they stand, since
// it does not know the plugin's variables. What a value itself contains is not looked at again. It tells whether
// anything has changed.
func expand(args, refs []string, env map[string]string) ([]string, bool) {
	var pairs []string
	for _, name := range refs {
		if value, set := env[name]; set {
			pairs = append(pairs, "$("+name+")", value)
		}
	}
	if len(pairs) == 0 {
		return args, false
	}
	replace := strings.NewReplacer(pairs...)
	expanded, changed := make([]string, len(args)), false
	for i, a := range args {
		expanded[i] = replace.Replace(a)
		changed = changed || expanded[i] != a
	}
	return expanded, changed
}
