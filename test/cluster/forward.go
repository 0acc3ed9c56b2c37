package cluster

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// forward connects each client of the listener with the API server in the network namespace of a process, until
// the listener is closed.
func forward(listener net.Listener, pid int) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return // the run is over before it began
	}
	var dialling sync.WaitGroup
	defer func() {
		dialling.Wait()
		ns.Close()
	}()
	for {
		outer, err := listener.Accept()
		if err != nil {
			return
		}
		dialling.Add(1)
		go func() {
			defer outer.Close()
			inner, err := dialIn(ns, apiAddress)
			dialling.Done()
			if err != nil {
				return // no process listens there: the client sees its connection closed
			}
			defer inner.Close()
			go func() {
				_, _ = io.Copy(inner, outer)
				inner.Close()
			}()
			_, _ = io.Copy(outer, inner)
		}()
	}
}

// dialIn connects to an address as seen in a network namespace. A socket stays in the namespace of the thread that
// made it.
func dialIn(ns *os.File, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is of no use to others and ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{err: fmt.Errorf("enter the network namespace: %w", err)}
			return
		}
		conn, err := net.Dial("tcp", address)
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}
