package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
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

// mapHook converts a list of texts like vendor.example/gpu=8, or one text with commas between them, to numbers or texts by name.
func mapHook(from, to reflect.Type, data any) (any, error) {
	if to.Kind() != reflect.Map {
		return data, nil
	}
	items, err := listHook(from, reflect.TypeFor[[]string](), data)
	if err != nil {
		return nil, err
	}
	list, ok := items.([]string)
	if !ok {
		return nil, errors.New("not a list of names and values")
	}
	numbers, texts := make(map[string]int, len(list)), make(map[string]string, len(list))
	for _, item := range list {
		name, text, ok := strings.Cut(item, "=")
		name, text = strings.TrimSpace(name), strings.TrimSpace(text)
		if !ok {
			return nil, fmt.Errorf("%s has no =", quote(item))
		}
		texts[name] = text
		if to.Elem().Kind() == reflect.Int {
			n, err := strconv.Atoi(text)
			if err != nil {
				return nil, fmt.Errorf("%s is not a name and a number", quote(item))
			}
			numbers[name] = n
		}
	}
	if to.Elem().Kind() == reflect.Int {
		return numbers, nil
	}
	return texts, nil
}

// quote shows a value in a message, cut to a readable length.
func quote(v any) string {
	text := fmt.Sprintf("%q", v)
	if len(text) > 120 {
		text = text[:116] + `..."`
	}
	return text
}
