package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
)

// maxFile is far above any sensible configuration; it keeps a path such as /dev/zero from filling the memory.
const maxFile = 1 << 20

// fromFile reads the YAML file.
func (o Options) fromFile(known map[string]field) (map[string]setting, []Mistake) {
	name := o.File
	if name == "" {
		name = DefaultFile
	}
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) && o.File == "" {
		return nil, nil
	}
	if err != nil {
		return nil, []Mistake{{"", name, reason(err), "name a file that exists and can be read with --config"}}
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	switch {
	case err != nil:
		return nil, []Mistake{{"", name, reason(err), "name a file that can be read with --config"}}
	case len(text) > maxFile:
		return nil, []Mistake{{"", name, "it is larger than 1 MiB", "name a configuration file with --config"}}
	}
	d := document{name: name, known: known, settings: map[string]setting{}, lines: map[string]int{}}
	d.read(text)
	return d.settings, d.mistakes
}

// reason returns the cause without the path, which the mistake already has.
func reason(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	return "cannot be read: " + err.Error()
}

// A document converts a YAML file to settings.
type document struct {
	name     string
	known    map[string]field
	settings map[string]setting
	lines    map[string]int // where each key was first seen
	mistakes []Mistake
}

func (d *document) read(text []byte) {
	decoder := yaml.NewDecoder(strings.NewReader(string(text)))
	var first, second yaml.Node
	if err := decoder.Decode(&first); errors.Is(err, io.EOF) {
		return // empty, or comments only
	} else if err != nil {
		d.wrong(nil, "", "is not YAML: "+strings.TrimPrefix(err.Error(), "yaml: "), "check this line and the one above it")
		return
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		d.wrong(&second, "", "there is more than one document", "remove the --- line and what follows it")
	}
	d.mapping("", first.Content[0])
}

// mapping reads the keys below prefix, which is empty or ends in a dot.
func (d *document) mapping(prefix string, n *yaml.Node) {
	n = follow(n)
	if isNull(n) {
		return // a heading with nothing below it
	}
	if n.Kind != yaml.MappingNode {
		d.wrong(n, strings.TrimSuffix(prefix, "."), "is not a group of keys", "write key: value lines, indented below it")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		name, value := n.Content[i], n.Content[i+1]
		key := prefix + name.Value
		if line, again := d.lines[key]; again {
			d.wrong(name, key, fmt.Sprintf("is already set in line %d", line), "keep one of them")
			continue
		}
		d.lines[key] = name.Line
		switch f, ok := d.known[key]; {
		case ok && !f.value.IsValid(): // it has no effect, whatever its value is
			d.settings[key] = setting{"", d.at(name)}
		case ok:
			d.value(f, value)
		case d.isGroup(key):
			d.mapping(key+".", value)
		default:
			m := unknown(key, d.at(name), slices.Collect(maps.Keys(d.known)))
			d.mistakes = append(d.mistakes, m)
		}
	}
}

// value reads the value of one key. It keeps the spelling of scalars, so that the index 05 stays 05.
func (d *document) value(f field, n *yaml.Node) {
	n = follow(n)
	what, remedy := f.form()
	switch {
	case isNull(n):
		d.wrong(n, f.key, "has no value", "set one, or remove the key")
	case n.Kind == yaml.ScalarNode && (f.isList() || f.isMap()):
		d.wrong(n, f.key, quote(n.Value)+" is not "+what, remedy)
	case n.Kind == yaml.ScalarNode:
		d.settings[f.key] = setting{n.Value, d.at(n)}
	case n.Kind == yaml.MappingNode && f.isMap():
		list := make([]string, 0, len(n.Content)/2)
		for i := 0; i < len(n.Content); i += 2 {
			name, number := n.Content[i], follow(n.Content[i+1])
			if number.Kind != yaml.ScalarNode {
				d.wrong(number, f.key, quote(name.Value)+" has no value", remedy)
				return
			}
			list = append(list, name.Value+"="+number.Value)
		}
		d.settings[f.key] = setting{list, d.at(n)}
	case n.Kind == yaml.SequenceNode && f.isList():
		list := make([]string, len(n.Content))
		for i, item := range n.Content {
			if item = follow(item); item.Kind != yaml.ScalarNode || isNull(item) {
				d.wrong(item, f.key, "an item is not a text", remedy)
				return
			}
			list[i] = item.Value
		}
		d.settings[f.key] = setting{list, d.at(n)}
	default:
		d.wrong(n, f.key, "is not "+what, remedy)
	}
}

// isGroup reports whether there are keys below key.
func (d *document) isGroup(key string) bool {
	for k := range d.known {
		if strings.HasPrefix(k, key+".") {
			return true
		}
	}
	return false
}

func (d *document) wrong(n *yaml.Node, key, problem, remedy string) {
	d.mistakes = append(d.mistakes, Mistake{key, d.at(n), problem, remedy})
}

// at returns file:line.
func (d *document) at(n *yaml.Node) string {
	if n == nil || n.Line == 0 {
		return d.name
	}
	return fmt.Sprintf("%s:%d", d.name, n.Line)
}

func follow(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }
