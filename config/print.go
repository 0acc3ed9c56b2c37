package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// WriteYAML prints c as a configuration file that loads as the same Config, in the order of the declaration, with the
// source of each value as a comment behind it.
func (c Config) WriteYAML(w io.Writer, from Sources) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields(&c) {
		group, name := root, f.key
		if heading, rest, ok := strings.Cut(f.key, "."); ok {
			group, name = child(root, heading), rest
		}
		value := f.node()
		value.LineComment = from[f.key]
		group.Content = append(group.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
	}
	e := yaml.NewEncoder(w)
	e.SetIndent(2)
	if err := e.Encode(root); err != nil {
		return fmt.Errorf("printing the configuration: %w", err)
	}
	return e.Close()
}

// child returns the group of that name at the end of n, and creates it if it is missing.
func child(n *yaml.Node, name string) *yaml.Node {
	if last := len(n.Content); last > 0 && n.Content[last-2].Value == name {
		return n.Content[last-1]
	}
	group := &yaml.Node{Kind: yaml.MappingNode}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, group)
	return group
}

// node returns the field's value in YAML. Texts that would read as another type are quoted.
func (f field) node() *yaml.Node {
	switch v := f.plain().(type) {
	case []string:
		if f.isMap() {
			values := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
			for _, s := range v {
				name, value, _ := strings.Cut(s, "=")
				node := &yaml.Node{Kind: yaml.ScalarNode, Value: value}
				if f.value.Type().Elem().Kind() == reflect.String {
					node = text(value)
				}
				values.Content = append(values.Content, text(name), node)
			}
			return values
		}
		list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
		for _, s := range v {
			list.Content = append(list.Content, text(s))
		}
		return list
	case string:
		if _, isText := f.value.Interface().(string); isText {
			return text(v)
		}
		return &yaml.Node{Kind: yaml.ScalarNode, Value: v}
	default:
		panic(fmt.Sprintf("config: key %s has a type that cannot be printed", f.key))
	}
}

// text returns a YAML text; the tag makes the encoder quote a text that would otherwise read as a number or null.
func text(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }
