// Package bitset has sets of positions in a list, of a fixed size.
package bitset

import (
	"math/bits"
	"slices"
)

// A Set can be read only. As a mask the zero Set contains everything; otherwise it is empty.
type Set struct{ words []uint64 }

// A Mutable is a Set that can be changed, and with it all Sets that are copies of its own.
type Mutable struct{ Set }

// New returns an empty set of positions below n.
func New(n int) Mutable { return Mutable{Set{make([]uint64, (n+63)/64)}} }

func (s Set) IsZero() bool   { return s.words == nil }
func (s Set) Has(i int) bool { return i/64 < len(s.words) && s.words[i/64]&(1<<(i%64)) != 0 }
func (s Set) Len() int       { return len(s.words) } // in words of 64 positions

// Next returns the lowest member that is not below from and is also in mask, or -1.
func (s Set) Next(from int, mask Set) int {
	for w := from / 64; w < len(s.words); w++ {
		word := s.words[w]
		if mask.words != nil {
			word &= mask.words[w]
		}
		if w == from/64 {
			word &= ^uint64(0) << (from % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return -1
}

// Clone returns a copy.
func (s Set) Clone() Mutable { return Mutable{Set{slices.Clone(s.words)}} }

// And returns the members that are also in mask.
func (s Set) And(mask Set) Mutable {
	both := s.Clone()
	for w := range mask.words {
		both.words[w] &= mask.words[w]
	}
	return both
}

// Common returns the number of members that are also in mask.
func (s Set) Common(mask Set) (n int) {
	for w, word := range s.words {
		if mask.words != nil {
			word &= mask.words[w]
		}
		n += bits.OnesCount64(word)
	}
	return n
}

func (m Mutable) Add(i int)    { m.words[i/64] |= 1 << (i % 64) }
func (m Mutable) Remove(i int) { m.words[i/64] &^= 1 << (i % 64) }

// Join adds all members of other.
func (m Mutable) Join(other Set) {
	for w, word := range other.words {
		m.words[w] |= word
	}
}
