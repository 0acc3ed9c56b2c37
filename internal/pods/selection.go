package pods

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// maxSelection bounds the annotation, and maxPatterns the patterns in it: each is compared with each device.
const (
	maxSelection = 16 << 10
	maxPatterns  = 128
)

// limit reads the pod's annotation devmgrd.io/devices into the demands. A mistake goes into all of them.
//
//	{"main": {"nvidia.com/gpu": {"use": ["GPU-3*"], "avoid": ["GPU-7"]}}}
func limit(p *corev1.Pod, demands []device.Demand) {
	text, set := p.Annotations[device.DevicesAnnotation]
	if !set || len(demands) == 0 {
		return
	}
	limits, err := parseSelections(text)
	for name, of := range limits {
		if err != nil {
			break
		}
		i := slices.IndexFunc(demands, func(d device.Demand) bool { return d.Container.Name == name })
		if i < 0 {
			err = fmt.Errorf("container %s requests no device", quote(name))
			break
		}
		for r := range of {
			if demands[i].Wants[r] == 0 {
				err = fmt.Errorf("container %s does not request %s", quote(name), r)
			}
		}
		demands[i].Select = of
	}
	if err != nil {
		for i := range demands {
			demands[i].Select, demands[i].Mistake = nil, device.ClipTo(fmt.Sprintf("annotation %s: %v", device.DevicesAnnotation, err), maxMessage)
		}
	}
}

// parseSelections reads the annotation's value, in YAML or JSON.
func parseSelections(text string) (map[string]map[device.ResourceName]device.Selection, error) {
	const like = `write it like {"main": {"nvidia.com/gpu": {"use": ["GPU-3*"], "avoid": ["GPU-7"]}}}`
	if len(text) > maxSelection {
		return nil, fmt.Errorf("it has %d bytes, and may have %d", len(text), maxSelection)
	}
	var document yaml.Node
	if yaml.Unmarshal([]byte(text), &document) == nil && aliased(&document) {
		return nil, errors.New("it has a YAML alias; write out what that stands for")
	}
	var all map[string]map[string]struct {
		Use   []string `yaml:"use"`
		Avoid []string `yaml:"avoid"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&all); errors.Is(err, io.EOF) || err == nil && len(all) == 0 {
		return nil, errors.New("it is empty; " + like)
	} else if err != nil {
		return nil, fmt.Errorf("%s; %s", strings.TrimPrefix(strings.ReplaceAll(err.Error(), "\n", ""), "yaml: "), like)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document; " + like)
	}
	limits, patterns := map[string]map[device.ResourceName]device.Selection{}, 0
	for _, container := range slices.Sorted(maps.Keys(all)) {
		limits[container] = map[device.ResourceName]device.Selection{}
		for _, name := range slices.Sorted(maps.Keys(all[container])) {
			r, err := device.ParseResourceName(name)
			if err != nil {
				return nil, err
			}
			one := all[container][name]
			patterns += len(one.Use) + len(one.Avoid)
			switch {
			case len(one.Use)+len(one.Avoid) == 0:
				return nil, fmt.Errorf("%s of container %s has neither use nor avoid; %s", r, quote(container), like)
			case patterns > maxPatterns:
				return nil, fmt.Errorf("it has more than %d patterns", maxPatterns)
			case slices.Contains(slices.Concat(one.Use, one.Avoid), ""):
				return nil, fmt.Errorf("%s of container %s has an empty pattern", r, quote(container))
			}
			limits[container][r] = device.Selection{Use: one.Use, Avoid: one.Avoid}
		}
	}
	return limits, nil
}

// aliased reports whether YAML has an alias. A short text may stand for a very long one by aliases.
func aliased(n *yaml.Node) bool {
	return n.Kind == yaml.AliasNode || slices.ContainsFunc(n.Content, aliased)
}

// quote shows a container's name as a user wrote it.
func quote(name string) string { return fmt.Sprintf("%q", device.Clip(name)) }
