package bitset_test

import (
	"math/rand/v2"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
)

// Sets agree with maps, whatever their size.
func TestSets_RandomMembers_AgreeWithMaps(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		n := random.IntN(200)
		a, b := bitset.New(n), bitset.New(n)
		inA, inB := map[int]bool{}, map[int]bool{}
		for range 2 * n {
			i := random.IntN(n)
			switch random.IntN(3) {
			case 0:
				a.Add(i)
				inA[i] = true
			case 1:
				a.Remove(i)
				delete(inA, i)
			case 2:
				b.Add(i)
				inB[i] = true
			}
		}
		joined := a.Clone()
		joined.Join(b.Set)
		both, common, from := a.And(b.Set), 0, 0
		for i := range n {
			if a.Has(i) != inA[i] || both.Has(i) != (inA[i] && inB[i]) || joined.Has(i) != (inA[i] || inB[i]) {
				t.Fatalf("seed %d, %d: %v, %v, %v", seed, i, a, b, joined)
			}
			if !inA[i] || !inB[i] {
				continue
			}
			common++
			if next := a.Next(from, b.Set); next != i {
				t.Fatalf("seed %d: the next of both is %d, want %d", seed, next, i)
			}
			from = i + 1
		}
		if a.Common(b.Set) != common || a.Next(from, b.Set) != -1 || a.Common(bitset.Set{}) != len(inA) {
			t.Fatalf("seed %d: %d in both, want %d; %d in a, want %d", seed, a.Common(b.Set), common, a.Common(bitset.Set{}), len(inA))
		}
	}
}

// The zero Set is empty, and as a mask contains everything.
func TestZeroSet_IsEmpty_MasksNothing(t *testing.T) {
	t.Parallel()
	var zero bitset.Set
	one := bitset.New(100)
	one.Add(70)
	if zero.Has(70) || zero.Next(0, one.Set) != -1 || one.Next(0, zero) != 70 || one.And(zero).Common(zero) != 1 || !zero.IsZero() || one.IsZero() {
		t.Errorf("%v, %v", zero, one)
	}
}
