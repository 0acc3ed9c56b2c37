//go:build race

package locks

import (
	"strings"
	"testing"
)

func TestMutex_WrongOrder_Panics(t *testing.T) {
	var first Mutex[PodsStore]
	var second Mutex[Allocator]
	var leaf, other Mutex[Leaf]
	for want, f := range map[string]func(){
		"": func() {
			first.Lock()
			second.Lock()
			leaf.Lock()
			first.Unlock() // in any order
			leaf.Unlock()
			other.Lock()
			other.Unlock()
			second.Unlock()
		},
		"locks.PodsStore is taken by a goroutine that holds locks.Allocator": func() { second.Lock(); defer second.Unlock(); first.Lock() },
		"locks.Leaf is taken by a goroutine that holds locks.Leaf":           func() { leaf.Lock(); defer leaf.Unlock(); other.Lock() },
		"locks.Leaf is returned by a goroutine that does not hold":           func() { Left[Leaf]() },
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got, _ := recover().(string); !strings.Contains(got, want) || (got == "") != (want == "") {
					t.Errorf("it panics with %q, want %q", got, want)
				}
			}()
			f()
		})
	}
}

// The locks of one goroutine are none of another's.
func TestMutex_OtherGoroutine_IsIndependent(t *testing.T) {
	var first Mutex[PodsStore]
	var second Mutex[Allocator]
	second.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		first.Lock()
		first.Unlock()
	}()
	<-done
	second.Unlock()
}
