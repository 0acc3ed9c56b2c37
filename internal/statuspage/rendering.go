package statuspage

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html/template"
	"time"
)

const (
	minLife = time.Second // of a rendering
	// share is the minimum ratio of a rendering's life to its making: with very many devices the page is rendered less often.
	share = 20
	beat  = 5 * time.Second // after which streams request another rendering without a change
)

// A rendering is the page at one moment. It never changes.
type rendering struct {
	body    []byte
	tag     string          // of its content, except ages
	updated <-chan struct{} // closed when it may be outdated
	fresh   time.Time       // until then every request gets it
	made    time.Time
}

// view returns the newest rendering. If that is too old, view makes another, or waits for the one that another request is making.
func (p *Page) view(ctx context.Context) (*rendering, error) {
	for {
		p.mu.Lock()
		if l := p.newest; l != nil && time.Now().Before(l.fresh) {
			p.mu.Unlock()
			return l, nil
		}
		making := p.making
		if making == nil {
			making = make(chan struct{})
			p.making = making
			p.mu.Unlock()
			return p.make(ctx, making)
		}
		p.mu.Unlock()
		select {
		case <-making:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// make makes a rendering for all waiting requests, even if the first one is canceled. After a failure the next request tries.
func (p *Page) make(ctx context.Context, done chan struct{}) (l *rendering, err error) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if l != nil {
			p.newest = l
		}
		p.making = nil
		close(done)
	}()
	began := time.Now()
	moved := p.cfg.Source.Updated() // before the first call: later changes count
	a, err := gather(context.WithoutCancel(ctx), p.cfg.Source)
	if err != nil {
		return nil, err
	}
	m := modelOf(a, time.Now().UTC())
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("describing the page: %w", err)
	}
	l = &rendering{tag: hex.EncodeToString(sum(string(text))[:8]), updated: moved}
	l.body, err = render(m, l.tag)
	if err != nil {
		return nil, err
	}
	l.made = time.Now()
	l.fresh = l.made.Add(max(minLife, share*l.made.Sub(began)))
	return l, nil
}

func render(m *model, tag string) ([]byte, error) {
	var b bytes.Buffer
	err := shell.Execute(&b, struct {
		*model
		Tag, Build string
		Style      template.CSS
		Script     template.JS
	}{m, tag, build, template.CSS(style), template.JS(script)})
	if err != nil {
		return nil, fmt.Errorf("writing the page: %w", err)
	}
	return b.Bytes(), nil
}
