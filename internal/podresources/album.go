package podresources

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An album keeps what has been drawn of each holding for as long as the holding is on the board. Its pages are never changed.
type album[T any] struct {
	draw func(*device.Holding) T

	mu    sync.Mutex
	board *device.Board
	pages map[*device.Holding]T
}

// of gives what is drawn of each holding on the board.
func (a *album[T]) of(b *device.Board) map[*device.Holding]T {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.board == b {
		return a.pages
	}
	pages := make(map[*device.Holding]T, len(b.Pods))
	for _, h := range b.Pods {
		page, drawn := a.pages[h]
		if !drawn {
			page = a.draw(h)
		}
		pages[h] = page
	}
	if a.board == nil || a.board.Revision < b.Revision { // or somebody was faster, with a newer one
		a.board, a.pages = b, pages
	}
	return pages
}
