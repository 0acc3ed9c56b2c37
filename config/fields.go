package config

import (
	_ "embed" // for Reference
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A field is one key of the configuration and the place of its value in a Config.
type field struct {
	key   string
	value reflect.Value // addressable
}

// fields lists every key of c in the order of its declaration, which is also the order in which they are printed.
func fields(c *Config) []field { return fieldsOf("", reflect.ValueOf(c).Elem()) }

func fieldsOf(prefix string, v reflect.Value) []field {
	var all []field
	for i := range v.NumField() {
		key := prefix + v.Type().Field(i).Tag.Get("key")
		if v.Field(i).Kind() == reflect.Struct {
			all = append(all, fieldsOf(key+".", v.Field(i))...)
			continue
		}
		all = append(all, field{key, v.Field(i)})
	}
	return all
}

// isList reports whether the field takes several values.
func (f field) isList() bool { return f.value.Kind() == reflect.Slice }

// isMap reports whether the field takes values by name.
func (f field) isMap() bool { return f.value.Kind() == reflect.Map }

// env returns the environment variable that sets the field.
func (f field) env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(f.key, ".", "_"))
}

// plain returns the field's value as a text or a list of texts; values by name are texts like vendor.example/gpu=8.
func (f field) plain() any {
	switch values := f.value.Interface().(type) {
	case map[string]int:
		return byName(values)
	case map[string]string:
		return byName(values)
	}
	if f.isList() {
		return f.value.Interface()
	}
	return fmt.Sprint(f.value.Interface())
}

// byName returns values as texts, sorted by their names.
func byName[V any](values map[string]V) []string {
	all := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, fmt.Sprintf("%s=%v", name, values[name]))
	}
	return all
}

// form returns the name of the field's type, and how to write a value.
func (f field) form() (what, remedy string) {
	switch f.value.Interface().(type) {
	case time.Duration:
		return "a duration", "write it like 1m30s"
	case bool:
		return "a boolean", "write true or false"
	case int:
		return "a whole number", "write it in digits, like 256"
	case []string:
		return "a list", "write it like [vendor.example/licence]"
	case map[string]int:
		return "a map of whole numbers", "write it like {vendor.example/gpu: 8}, or vendor.example/gpu=8 in a variable or with --set"
	case map[string]string:
		return "a map of texts", "write it like {vendor.example/gpu: pack}, or vendor.example/gpu=pack in a variable or with --set"
	default:
		return "a text", "write one value"
	}
}

// nearest returns the candidate with the smallest edit distance to s, if a typing error explains it: at most three
// letters, and at most a quarter of a short word.
func nearest(s string, candidates []string) (string, bool) {
	best, least := "", min(3, len(s)/4)+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(s), strings.ToLower(c)); d < least {
			best, least = c, d
		}
	}
	return best, best != ""
}

// distance counts the letters to insert, delete, replace or swap with their neighbour that turn a into b.
func distance(a, b string) int {
	before, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev, row = prev, row, before
	}
	return prev[len(b)]
}

// Reference is the commented configuration file: every key with its meaning, and its default commented out.
//
//go:embed devmgrd.yaml
var Reference string
