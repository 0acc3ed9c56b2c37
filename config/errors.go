package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// A Mistake is one mistake in the configuration.
type Mistake struct {
	Key     string // empty: the source as a whole
	Source  string // file:line, an environment variable, --set, or default
	Problem string
	Remedy  string
}

// String returns the mistake in one line.
func (m Mistake) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: ", m.Source)
	if m.Key != "" {
		fmt.Fprintf(&b, "%s: ", m.Key)
	}
	b.WriteString(m.Problem)
	if m.Remedy != "" {
		fmt.Fprintf(&b, "; %s", m.Remedy)
	}
	return b.String()
}

// Error reports an invalid configuration. It holds every mistake, in the order of the keys.
type Error struct{ Mistakes []Mistake }

// Error returns one line per mistake.
func (e *Error) Error() string {
	lines := make([]string, len(e.Mistakes))
	for i, m := range e.Mistakes {
		lines[i] = m.String()
	}
	return strings.Join(lines, "\n")
}

// refuse returns the mistakes as an error, or nil if there are none.
func refuse(mistakes []Mistake) error {
	if len(mistakes) == 0 {
		return nil
	}
	slices.SortStableFunc(mistakes, func(a, b Mistake) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Source, b.Source))
	})
	return &Error{mistakes}
}

// listHook lets the environment and --set set a list in one text: items with commas between them, in brackets or
// not. An empty text is an empty list.
func listHook(from, to reflect.Type, data any) (any, error) {
	text, ok := data.(string)
	if !ok || from.Kind() != reflect.String || to.Kind() != reflect.Slice {
		return data, nil
	}
	text = strings.TrimSpace(text)
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if text, ok = strings.CutSuffix(inner, "]"); !ok {
			return nil, fmt.Errorf("a [ without a ]")
		}
	}
	list := []string{}
	if strings.TrimSpace(text) == "" {
		return list, nil
	}
	for item := range strings.SplitSeq(text, ",") {
		list = append(list, strings.TrimSpace(item))
	}
	return list, nil
}

// quote shows a value in a message, cut to a readable length.
func quote(v any) string {
	text := fmt.Sprintf("%q", v)
	if len(text) > 120 {
		text = text[:116] + `..."`
	}
	return text
}
