package podresources

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// silent is a connection to a client that reads nothing.
type silent struct {
	net.Conn
	closed atomic.Bool
}

func (s *silent) Close() error { s.closed.Store(true); return nil }

// Many clients read nothing, each within its share. Another client's answer waits shortly, then the one with the most makes room.
func TestMakeRoom_ManyClientsReadNothing_TheOneWithTheMostIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &Server{clients: newClients(slog.New(slog.DiscardHandler)), readLimit: time.Hour}
		data := make([]byte, maxUnreadOfClient-1)
		var all []*silent
		for i := range maxUnread / maxUnreadOfClient {
			all = append(all, &silent{})
			s.clients.answer(s.clients.connect(all[i], fmt.Sprint("pod ", i)), data[:len(data)-1], s.readLimit)
		}
		all = append(all, &silent{})
		most := s.clients.connect(all[len(all)-1], "pod 0")
		s.clients.answer(most, data, s.readLimit)

		began := time.Now()
		honest := &call{conn: s.clients.connect(&silent{}, "agent")}
		if err := s.turn(context.WithValue(t.Context(), callKey{}, honest)); err != nil {
			t.Fatal(err)
		}
		honest.giveUp()
		if waited := time.Since(began); waited != roomLimit {
			t.Errorf("it waited %v", waited)
		}
		for i, c := range all {
			if last := i == len(all)-1; c.closed.Load() != last {
				t.Errorf("connection %d closed: %t", i, !last)
			}
		}
		if n := s.Unread(); n >= maxUnread {
			t.Errorf("%d bytes are unread", n)
		}
		for _, of := range s.clients.all {
			for c := range of.connections {
				c.Close()
			}
		}
		if n := s.Unread(); n != 0 {
			t.Errorf("%d bytes are unread on no connection", n)
		}
	})
}

// A client that goes on reading keeps its connection, however slowly it reads.
func TestAnswer_SlowReader_KeepsItsConnectionWhileItReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, c := &Server{clients: newClients(slog.New(slog.DiscardHandler))}, &silent{}
		a := s.clients.answer(s.clients.connect(c, "agent"), make([]byte, 4*answerPart), readLimit)
		parts, err := newCodec().Marshal(a)
		if err != nil || len(parts) != 4 {
			t.Fatalf("%d parts, %v", len(parts), err)
		}
		for _, part := range parts[:3] {
			time.Sleep(readLimit - time.Second)
			part.Free()
		}
		if c.closed.Load() || s.Unread() != len(a.data) {
			t.Errorf("closed: %t, %d bytes unread", c.closed.Load(), s.Unread())
		}
		time.Sleep(readLimit + time.Second)
		if !c.closed.Load() || s.Unread() != 0 {
			t.Errorf("closed: %t, %d bytes unread", c.closed.Load(), s.Unread())
		}
	})
}
