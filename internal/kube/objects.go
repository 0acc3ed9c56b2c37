package kube

import (
	"iter"
	"maps"

	"github.com/devmgrd/devmgrd/internal/lists"
)

// Objects are the newest versions of watched objects, by name: from the watch, and from the answers to writes, each of which may be ahead of the other. They
// remember nothing of objects that are gone, of which another client may make any number: what a late answer says is compared with how far the watch has
// come. The owner's lock guards them. The zero value has no objects.
type Objects[T any] struct {
	all map[string]versioned[T]
	// passed is the version up to which the watch has delivered everything.
	passed uint64
	// missing are the last versions of objects that a request has not found, until the watch has passed these.
	missing map[string]uint64
}

type versioned[T any] struct {
	number uint64 // the resourceVersion
	is     T
}

// Get returns an object, and false if it is not there.
func (o *Objects[T]) Get(name string) (T, bool) {
	v, there := o.all[name]
	return v.is, there
}

// All returns the objects.
func (o *Objects[T]) All() iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for name, v := range o.all {
			if !yield(name, v.is) {
				return
			}
		}
	}
}

// Replace takes over a full list of that version, whose objects follow as from the watch. It is believed even where an answer to a write was newer: the watch
// repeats that version, and after the restore of a backup there is none.
func (o *Objects[T]) Replace(version uint64) {
	*o = Objects[T]{passed: version}
}

// Listed takes an object from the list that Replace has announced.
func (o *Objects[T]) Listed(name string, number uint64, is T) { o.set(name, number, is) }

// Seen takes an object from the watch, and reports whether it is newer than what is known.
func (o *Objects[T]) Seen(name string, number uint64, is T) bool {
	defer o.Passed(number)
	if older(number, max(o.all[name].number, o.missing[name])) {
		return false
	}
	o.set(name, number, is)
	return true
}

// Answered takes an object from the answer to a request, and reports whether it is newer than what is known. One that is not there, and whose version
// the watch has passed, is gone.
func (o *Objects[T]) Answered(name string, number uint64, is T) bool {
	v, there := o.all[name]
	if there && older(number, v.number) || !there && older(number, max(o.passed, o.missing[name])) {
		return false
	}
	o.set(name, number, is)
	return true
}

// Deleted takes a deletion from the watch, and reports whether the object was there until then.
func (o *Objects[T]) Deleted(name string, number uint64) bool {
	defer o.Passed(number)
	if v, there := o.all[name]; !there || older(number, v.number) {
		return false
	}
	delete(o.all, name)
	return true
}

// Missing removes an object that a request has not found, or has deleted. The watch may still repeat it.
func (o *Objects[T]) Missing(name string) {
	if v, there := o.all[name]; there && v.number > o.passed {
		lists.Put(&o.missing, name, v.number)
	}
	delete(o.all, name)
}

// Passed takes the version up to which the watch has delivered everything.
func (o *Objects[T]) Passed(version uint64) {
	o.passed = max(o.passed, version)
	maps.DeleteFunc(o.missing, func(_ string, number uint64) bool { return number <= o.passed })
}

// Exchange replaces an object that is there by an equal one.
func (o *Objects[T]) Exchange(name string, by T) { o.set(name, o.all[name].number, by) }

// older reports whether a version is not newer than what is known; 0 cannot be compared.
func older(number, known uint64) bool { return number != 0 && number <= known }

func (o *Objects[T]) set(name string, number uint64, is T) {
	lists.Put(&o.all, name, versioned[T]{number, is})
	delete(o.missing, name)
}
