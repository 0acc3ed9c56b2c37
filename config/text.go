package config

import (
	"fmt"
	"reflect"
	"strings"
)

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
