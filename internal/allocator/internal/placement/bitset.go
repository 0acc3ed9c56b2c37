package placement

import (
	"math/bits"
	"slices"
)

// A bitset is a set of positions in a listing.
type bitset []uint64

func newBitset(n int) bitset { return make(bitset, (n+63)/64) }

func (b bitset) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }
func (b bitset) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bitset) remove(i int)   { b[i/64] &^= 1 << (i % 64) }

// next returns the lowest member that is not below from and is also in mask, or -1. A nil mask contains everything.
func (b bitset) next(from int, mask bitset) int {
	for w := from / 64; w < len(b); w++ {
		word := b[w]
		if mask != nil {
			word &= mask[w]
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

// and returns the members that are also in mask. A nil mask contains everything.
func (b bitset) and(mask bitset) bitset {
	both := slices.Clone(b)
	for w := range mask {
		both[w] &= mask[w]
	}
	return both
}

// common returns the number of members that are also in mask. A nil mask contains everything.
func (b bitset) common(mask bitset) (n int) {
	for w, word := range b {
		if mask != nil {
			word &= mask[w]
		}
		n += bits.OnesCount64(word)
	}
	return n
}

// join adds all members of other.
func (b bitset) join(other bitset) {
	for w, word := range other {
		b[w] |= word
	}
}
