package page

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
	minLife = time.Second // of a look
	// share is how much longer than its making a look lives at least: with very many devices it is made less often.
	share = 20
	beat  = 5 * time.Second // after which streams want another one although nothing has moved
)

// A view is the page as it was at one moment. It is never changed.
type rendering struct {
	body    []byte
	tag     string          // of all that is on it, but for how long ago things were
	updated <-chan struct{} // closed when it may be outdated
	fresh   time.Time       // until then it is what anybody gets
	made    time.Time
}

// view returns the newest look. If that is too old it makes one, or waits for the one that somebody else is making.
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

// make makes a look for all that wait for it, whatever becomes of the one who asked first. If that fails the next one tries.
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
	moved := p.cfg.Source.Updated() // before anything is asked: what changes from here on counts
	a, err := gather(context.WithoutCancel(ctx), p.cfg.Source)
	if err != nil {
		return nil, err
	}
	m := modelOf(a, now())
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("describing the page: %w", err)
	}
	l = &rendering{tag: hex.EncodeToString(sum(string(text))[:8]), updated: moved}
	if l.body, err = render(m, l.tag); err != nil {
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
