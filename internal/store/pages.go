package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// walk reads a bbolt file without bbolt, and trusts none of it. bbolt maps the file and follows its page numbers: a damaged
// number leads bbolt out of the file or into an endless loop, and the process cannot recover from either
// (docs/decisions/0007-damaged-state-file-is-set-aside.md). So walk checks every page before bbolt opens the file.
//
// The format (bbolt's version 2) is a tree of buckets, each a B+tree of pages, in the byte order of the machine:
//
//	page    id 8, flags 2, count 2, overflow 4 bytes; then its elements; then keys and values
//	header  pages 0 and 1, of the latest commit and the one before: magic number, version, page size, flags, page of the root
//	        bucket, its counter, page of the free list, first unused page, number of the commit, checksum
//	branch  elements of offset, key length (4 bytes each), page (8 bytes): that page has the key and those after it
//	leaf    elements of flags, offset, key length, value length (4 bytes each)
//	bucket  the value of a leaf's element: the page of its root (0: the page follows at once) and a counter, 8 bytes each
type walker struct {
	data       []byte
	size       uint64 // of a page
	end        uint64 // the first unused page
	used       []bool // pages that have been read
	visit      func(path [][]byte, key, value []byte)
	root, free uint64
	commit     uint64
}

const (
	pageHeader    = 16
	elementSize   = 16
	bucketHeader  = 16
	headerSize    = 64
	headerMagic   = 0xED0CDAED
	headerVersion = 2
	noFreeList    = ^uint64(0)
	minPageSize   = 1 << 10
	maxPageSize   = 1 << 16
	listTooLong   = 0xFFFF // pages in a free list: its first entry is their number then

	branchPage, leafPage, freePage = 0x01, 0x02, 0x10 // flags of pages
	isBucket                       = 0x01             // flag of an element
)

var errFormat = errors.New("this devmgrd does not support its format")

// walk calls visit for each key and value of the file; a bucket's value is nil. It fails with errFormat if the headers are
// sound, but of another format.
func walk(data []byte, visit func(path [][]byte, key, value []byte)) error {
	if len(data) < pageHeader+headerSize {
		return fmt.Errorf("it has only %d bytes", len(data))
	}
	size := uint64(binary.NativeEndian.Uint32(data[pageHeader+8:]))
	if size < minPageSize || size > maxPageSize || size&(size-1) != 0 || uint64(len(data)) < 2*size {
		return errors.New("it has no valid header")
	}
	w := &walker{data: data, size: size, visit: visit}
	// If the newer header is damaged, bbolt uses the older one and silently loses the latest commit. A commit that a crash cuts
	// off leaves both valid: a header is far smaller than a disk's atomic write.
	for i := range uint64(2) {
		if err := w.header(i); err != nil {
			return fmt.Errorf("header %d: %w", i, err)
		}
	}
	if w.end < 2 || w.end > uint64(len(data))/size {
		return fmt.Errorf("it is truncated: it has %d bytes, and uses %d pages of %d", len(data), w.end, size)
	}
	w.used = make([]bool, w.end)
	w.used[0], w.used[1] = true, true
	if err := w.tree(w.root, nil, nil, nil); err != nil {
		return err
	}
	return w.freeList()
}

func (w *walker) header(i uint64) error {
	b := w.data[i*w.size+pageHeader:][:headerSize]
	number := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	sum := fnv.New64a()
	sum.Write(b[:headerSize-8])
	switch {
	case binary.NativeEndian.Uint32(b) != headerMagic:
		return errors.New("it is not a bbolt header")
	case number(headerSize-8) != sum.Sum64():
		return errors.New("its checksum is wrong")
	case binary.NativeEndian.Uint32(b[4:]) != headerVersion:
		return errFormat
	case uint64(binary.NativeEndian.Uint32(b[8:])) != w.size:
		return errors.New("the headers do not agree on the page size")
	}
	if commit := number(48); i == 0 || commit > w.commit {
		w.root, w.free, w.end, w.commit = number(16), number(32), number(40), commit
	}
	return nil
}

// page returns the flags of a page, the number of its elements, and the bytes after its header. It accepts each page only
// once, so walk ends.
func (w *walker) page(id uint64) (flags, count uint16, body []byte, err error) {
	if id < 2 || id >= w.end {
		return 0, 0, nil, fmt.Errorf("page %d does not exist", id)
	}
	b := w.data[id*w.size:]
	overflow := uint64(binary.NativeEndian.Uint32(b[12:]))
	switch {
	case binary.NativeEndian.Uint64(b) != id:
		return 0, 0, nil, fmt.Errorf("page %d has the number of page %d", id, binary.NativeEndian.Uint64(b))
	case overflow >= w.end-id:
		return 0, 0, nil, fmt.Errorf("page %d is longer than the file", id)
	}
	for i := id; i <= id+overflow; i++ {
		if w.used[i] {
			return 0, 0, nil, fmt.Errorf("page %d is used twice", i)
		}
		w.used[i] = true
	}
	return binary.NativeEndian.Uint16(b[8:]), binary.NativeEndian.Uint16(b[10:]), b[pageHeader : (overflow+1)*w.size], nil
}

// tree reads a page and all pages below it. The page's first key is low, and all its keys are below high; nil: no such bound.
// low is exact because bbolt, when it writes a page, looks up the page's element in the branch above by its first key.
func (w *walker) tree(id uint64, path [][]byte, low, high []byte) error {
	flags, count, body, err := w.page(id)
	if err != nil {
		return err
	}
	return w.elements(id, flags, count, body, path, low, high)
}

// An element of a page has a page below it, in a branch, or a value, in a leaf.
type element struct {
	flags      uint32
	page       uint64
	key, value []byte
}

// elements reads the elements of page id, or of a bucket on it, and all pages below them.
func (w *walker) elements(id uint64, flags, count uint16, body []byte, path [][]byte, low, high []byte) error {
	if flags != leafPage && flags != branchPage || count == 0 && (flags == branchPage || low != nil) || int(count)*elementSize > len(body) {
		return fmt.Errorf("page %d is damaged: flags %#x, %d elements", id, flags, count)
	}
	end := uint64(count) * elementSize // end of the bytes read: bbolt leaves no gap between elements, keys and values
	read := func(i uint16) (e element, err error) {
		at := uint64(i) * elementSize
		word := func(n uint64) uint64 { return uint64(binary.NativeEndian.Uint32(body[at+4*n:])) }
		from, key, value := word(0), word(1), uint64(0)
		if flags == leafPage {
			e.flags, from, key, value = uint32(word(0)), word(1), word(2), word(3)
		} else {
			e.page = binary.NativeEndian.Uint64(body[at+8:])
		}
		if at+from != end || key == 0 || end+key+value > uint64(len(body)) || e.flags&^isBucket != 0 {
			return e, fmt.Errorf("page %d: element %d is damaged", id, i)
		}
		e.key, e.value = body[end:end+key], body[end+key:end+key+value]
		end += key + value
		return e, nil
	}
	var ahead element
	var err error
	for i := range count {
		e, below := ahead, high
		if i == 0 {
			if e, err = read(0); err != nil {
				return err
			}
			if low != nil && !bytes.Equal(e.key, low) {
				return fmt.Errorf("page %d does not begin with its key in the branch above", id)
			}
		}
		if i+1 < count {
			if ahead, err = read(i + 1); err != nil {
				return err
			}
			below = ahead.key
		}
		switch {
		case below != nil && bytes.Compare(e.key, below) >= 0:
			return fmt.Errorf("page %d: its keys are out of order", id)
		case flags == branchPage:
			err = w.tree(e.page, path, e.key, below)
		case e.flags == isBucket:
			w.visit(path, e.key, nil)
			err = w.bucket(id, e.value, append(path[:len(path):len(path)], e.key))
		default:
			w.visit(path, e.key, e.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bucket reads a bucket whose root is stored in an element of page id.
func (w *walker) bucket(id uint64, value []byte, path [][]byte) error {
	cut := func() error { return fmt.Errorf("page %d: bucket %.40q is truncated", id, path[len(path)-1]) }
	if len(value) < bucketHeader {
		return cut()
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return w.tree(root, path, nil, nil)
	}
	page := value[bucketHeader:]
	if len(page) < pageHeader || binary.NativeEndian.Uint16(page[8:]) != leafPage {
		return cut()
	}
	return w.elements(id, leafPage, binary.NativeEndian.Uint16(page[10:]), page[pageHeader:], path, nil, nil)
}

// freeList checks the list of free pages, if there is one: in the history, and in files written by bbolt's tools.
func (w *walker) freeList() error {
	if w.free == noFreeList {
		return nil
	}
	flags, count, body, err := w.page(w.free)
	if err != nil {
		return fmt.Errorf("the list of free pages: %w", err)
	}
	n := uint64(count)
	if n == listTooLong {
		n, body = binary.NativeEndian.Uint64(body), body[8:]
	}
	if flags != freePage || n > uint64(len(body))/8 {
		return errors.New("the list of free pages cannot be read")
	}
	for last := uint64(1); n > 0; n, body = n-1, body[8:] {
		id := binary.NativeEndian.Uint64(body)
		if id <= last || id >= w.end || w.used[id] {
			return fmt.Errorf("page %d is wrongly listed as free", id)
		}
		last = id
	}
	return nil
}
