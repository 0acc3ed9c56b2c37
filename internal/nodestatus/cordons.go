package nodestatus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	yaml "go.yaml.in/yaml/v3"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Cordons receives the cordons that the Node's annotation declares.
type Cordons interface {
	// DeclareCordons replaces all that were declared before. After an error it is called again.
	DeclareCordons([]device.Cordon) error
}

const (
	maxDeclared = 4096 // devices in the annotation
	maxReason   = 1024 // bytes of one reason
	maxID       = 4096 // bytes of one device ID
)

// followCordons passes on the Node's annotation at each change until ctx ends. While there is no Node, or its annotation has a
// mistake, the cordons before stay in force.
func (p *Publisher) followCordons(ctx context.Context) {
	changed := p.store.follow()
	retry := loops.Backoff{First: firstRetry, Last: lastRetry}
	var last *string
	passed := false
	for ctx.Err() == nil {
		if node, known := p.store.now(); known && node.there && (!passed || !same(node.cordons, last)) {
			if err := p.declare(node.cordons); err != nil {
				p.cfg.Log.Warn("cannot save declared cordons; retrying", "err", err)
				p.pause(ctx, retry.Next(), nil)
				continue
			}
			retry.Reset()
			last, passed = node.cordons, true
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func same(a, b *string) bool { return a == b || a != nil && b != nil && *a == *b }

// declare passes on one value of the annotation; nil: there is none. A mistake in it is reported, and is no error.
func (p *Publisher) declare(text *string) error {
	if text == nil {
		return p.cfg.Cordons.DeclareCordons(nil)
	}
	cordons, err := parseCordons(*text, time.Now().UTC().Truncate(time.Second))
	if err != nil {
		p.cfg.Log.Warn("ignoring node annotation", "annotation", device.CordonAnnotation, "err", err)
		p.cfg.Notifier.InvalidCordons(err)
		return nil
	}
	return p.cfg.Cordons.DeclareCordons(cordons)
}

// parseCordons reads the annotation: a map, in YAML or JSON, from resources to lists of device IDs, or to maps from device IDs to
// reasons.
//
//	vendor.example/gpu: [GPU-3, GPU-4]
//	vendor.example/nic: {nic-0: "link flaps, ticket 4711"}
//
// An empty text is a mistake, as of a template without its values. {} declares that there are none.
func parseCordons(text string, now time.Time) ([]device.Cordon, error) {
	var document, second yaml.Node
	decoder := yaml.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty; write {} to declare no cordons, or remove the annotation")
	} else if err != nil {
		return nil, fmt.Errorf("it is not YAML: %s; write it like vendor.example/gpu: [GPU-3, GPU-4]", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one document; remove the --- line and what follows it")
	}
	resources := document.Content[0]
	if resources.Tag == "!!null" {
		return nil, errors.New("it is empty; write {} to declare no cordons, or remove the annotation")
	}
	if resources.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("it is no map from resources to devices; write it like vendor.example/gpu: [GPU-3, GPU-4]")
	}
	var all []device.Cordon
	for i := 0; i < len(resources.Content); i += 2 {
		name, devices := resources.Content[i].Value, resources.Content[i+1]
		r, err := device.ParseResourceName(name)
		if err != nil {
			return nil, err
		}
		some, err := cordonsIn(r, devices, now)
		if err != nil {
			return nil, fmt.Errorf("resource %s: %w", r, err)
		}
		if all = append(all, some...); len(all) > maxDeclared {
			return nil, fmt.Errorf("it names more than %d devices; to keep pods off the whole node, use kubectl cordon", maxDeclared)
		}
	}
	return all, nil
}

// cordonsIn reads the devices of one resource.
func cordonsIn(r device.ResourceName, devices *yaml.Node, now time.Time) (all []device.Cordon, err error) {
	add := func(id, reason *yaml.Node) error {
		c := device.Cordon{Resource: r, ID: device.ID(id.Value), Since: now, Declared: true}
		if id.Kind != yaml.ScalarNode || id.Value == "" || len(id.Value) > maxID {
			return fmt.Errorf("line %d: not a device ID; write IDs like [GPU-3, GPU-4]", id.Line)
		}
		if reason != nil {
			if reason.Kind != yaml.ScalarNode || len(reason.Value) > maxReason {
				return fmt.Errorf("device %s: the reason is no text of at most %d bytes", device.QuoteID(c.ID), maxReason)
			}
			if reason.Tag != "!!null" {
				c.Reason = reason.Value
			}
		}
		all = append(all, c)
		return nil
	}
	switch devices.Kind {
	case yaml.SequenceNode:
		for _, id := range devices.Content {
			if err := add(id, nil); err != nil {
				return nil, err
			}
		}
	case yaml.MappingNode:
		for i := 0; i < len(devices.Content); i += 2 {
			if err := add(devices.Content[i], devices.Content[i+1]); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("its devices are neither a list of IDs nor a map from IDs to reasons; write it like %s: [GPU-3, GPU-4]", r)
	}
	return all, nil
}
