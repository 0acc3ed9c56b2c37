package lists

// Put sets an entry of a map, which is made if there is none.
func Put[M ~map[K]V, K comparable, V any](all *M, key K, value V) {
	if *all == nil {
		*all = M{}
	}
	(*all)[key] = value
}

// Inner returns a map within another one, which is made if there is none.
func Inner[M ~map[K]V, V ~map[L]W, K, L comparable, W any](all M, key K) V {
	inner := all[key]
	if inner == nil {
		inner = V{}
		all[key] = inner
	}
	return inner
}
