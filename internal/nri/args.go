package nri

import (
	"errors"
	"strings"
)

// errTooLong is the error of expand.
var errTooLong = errors.New("the command line becomes too long")

// expand replaces references $(NAME) in a container's command line by the values of the plugin's variables. refs names the
// references that the kubelet has left, because the pod does not define them. References inside values are not expanded. changed
// reports whether the command line differs. expand stops when the command line has grown by more than most bytes: a few characters
// can refer to a value of any length, so time and memory must not depend on the result's length.
func expand(args, refs []string, env map[string]string, most int) (expanded []string, changed bool, err error) {
	var pairs []string
	for _, name := range refs {
		if value, set := env[name]; set {
			pairs = append(pairs, "$("+name+")", value)
		}
	}
	if len(pairs) == 0 {
		return args, false, nil
	}
	replace := strings.NewReplacer(pairs...)
	left := length(args) + most
	expanded = make([]string, len(args))
	for i, a := range args {
		if !strings.Contains(a, "$(") {
			expanded[i] = a
			left -= len(a)
			continue
		}
		to := limited{left: left}
		if _, err := replace.WriteString(&to, a); err != nil {
			return nil, false, err
		}
		left = to.left
		expanded[i] = to.text.String()
		changed = changed || expanded[i] != a
	}
	if left < 0 { // an argument without a reference came last
		return nil, false, errTooLong
	}
	return expanded, changed, nil
}

// A limited writer keeps what is written, and fails at the first byte beyond its limit.
type limited struct {
	text strings.Builder
	left int
}

func (l *limited) WriteString(s string) (int, error) {
	l.left -= len(s)
	if l.left < 0 {
		return 0, errTooLong
	}
	return l.text.WriteString(s)
}

// Write is part of io.Writer.
func (l *limited) Write(p []byte) (int, error) { return l.WriteString(string(p)) }
