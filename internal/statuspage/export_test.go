package statuspage

import (
	"context"
	"log/slog"
)

// Render makes the page once, whatever there is already.
func Render(from Source) ([]byte, error) {
	p := New(Config{Source: from, Log: slog.New(slog.DiscardHandler)})
	l, err := p.view(context.Background())
	if err != nil {
		return nil, err
	}
	return l.body, nil
}
