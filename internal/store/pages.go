package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
)

// pages goes through a bbolt file and believes none of it. bbolt maps the file and follows what it finds there: a number
// that lies leads it out of the file or round in circles, which ends the process, and nothing can be done about that from
// outside. So nothing is opened before it has been looked at here. On the way each key and value is shown to whoever wants
// to see them.
//
// The format (bbolt's version 2, the same for many years) is a tree of buckets, each a B+tree of pages:
//
//	page    id 8, flags 2, count 2, overflow 4 bytes; then its elements; then keys and values
//	header  pages 0 and 1, of the latest commit and the one before: magic number, version, page size, where the root bucket
//	        is, where the list of free pages is, the first page that was never used, the commit's number, a checksum
//	branch  elements: where the key is, and the page with that key and those after it
//	leaf    elements: whether it is a bucket, where key and value are
//	bucket  the value of a leaf's element: the page of its root and a counter; a small one's only page follows at once
type pages struct {
	data []byte
	size uint64 // of a page
	head header // of the latest commit
	used []bool // pages that belong to something
	see  func(path [][]byte, key, value []byte)
}

const (
	pageHeader    = 16
	elementSize   = 16
	bucketHeader  = 16
	headerSize    = 64
	headerMagic   = 0xED0CDAED
	headerVersion = 2
	noFreelist    = ^uint64(0)
	minPageSize   = 1 << 10
	maxPageSize   = 1 << 16
	listTooLong   = 0xFFFF // pages in a list of free ones: the number is the list's first entry then
)

// Flags of pages, and of elements.
const (
	branchPage = 0x01
	leafPage   = 0x02
	freePage   = 0x10

	isBucket = 0x01
)

// A header is what page 0 or 1 says of one commit.
type header struct {
	root, freelist, end, commit uint64
}

var errFormat = errors.New("its format is not one that this devmgrd knows")

// walk goes through the whole file. It fails with errFormat where the header is sound, but of another format.
func walk(data []byte, see func(path [][]byte, key, value []byte)) error {
	if len(data) < pageHeader+headerSize {
		return fmt.Errorf("it has only %d bytes", len(data))
	}
	size := uint64(binary.NativeEndian.Uint32(data[pageHeader+8:]))
	if size < minPageSize || size > maxPageSize || size&(size-1) != 0 || uint64(len(data)) < 2*size {
		return errors.New("it has no valid header")
	}
	p := &pages{data: data, size: size, see: see}
	// bbolt takes the older header if the newer one is broken, and so would forget the latest commit without a word. A
	// commit that a crash cuts off leaves both valid: a header is far smaller than what a disk writes in one piece.
	for i := range uint64(2) {
		h, err := p.header(i)
		if err != nil {
			return fmt.Errorf("header %d: %w", i, err)
		}
		if i == 0 || h.commit > p.head.commit {
			p.head = h
		}
	}
	if p.head.end < 2 || p.head.end > uint64(len(data))/size {
		return fmt.Errorf("it is cut short: %d bytes are there, and it uses %d pages of %d", len(data), p.head.end, size)
	}
	p.used = make([]bool, p.head.end)
	p.used[0], p.used[1] = true, true
	if err := p.tree(p.head.root, nil, nil, nil); err != nil {
		return err
	}
	return p.free()
}

func (p *pages) header(i uint64) (header, error) {
	b := p.data[i*p.size+pageHeader:][:headerSize]
	number := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	sum := fnv.New64a()
	sum.Write(b[:headerSize-8])
	switch {
	case binary.NativeEndian.Uint32(b) != headerMagic:
		return header{}, errors.New("it is not bbolt's")
	case number(headerSize-8) != sum.Sum64():
		return header{}, errors.New("its checksum is wrong")
	case binary.NativeEndian.Uint32(b[4:]) != headerVersion:
		return header{}, errFormat
	case uint64(binary.NativeEndian.Uint32(b[8:])) != p.size:
		return header{}, errors.New("the headers do not agree on the page size")
	}
	return header{root: number(16), freelist: number(32), end: number(40), commit: number(48)}, nil
}

// page gives a page's kind, the number of its elements, and what follows the page's own header. Each page is taken once.
func (p *pages) page(id uint64) (flags, count uint16, body []byte, err error) {
	if id < 2 || id >= p.head.end {
		return 0, 0, nil, fmt.Errorf("page %d does not exist", id)
	}
	b := p.data[id*p.size:]
	overflow := uint64(binary.NativeEndian.Uint32(b[12:]))
	switch {
	case binary.NativeEndian.Uint64(b) != id:
		return 0, 0, nil, fmt.Errorf("page %d says that it is page %d", id, binary.NativeEndian.Uint64(b))
	case overflow >= p.head.end-id:
		return 0, 0, nil, fmt.Errorf("page %d is longer than the file", id)
	}
	for i := id; i <= id+overflow; i++ {
		if p.used[i] {
			return 0, 0, nil, fmt.Errorf("page %d belongs to two others", i)
		}
		p.used[i] = true
	}
	return binary.NativeEndian.Uint16(b[8:]), binary.NativeEndian.Uint16(b[10:]), b[pageHeader : (overflow+1)*p.size], nil
}

// tree goes through a bucket, or the part of it whose first key is low and whose keys are below high; nil: whatever they are.
// bbolt finds a page's entry in the branch above by that first key when it writes the page anew.
func (p *pages) tree(id uint64, path [][]byte, low, high []byte) error {
	flags, count, body, err := p.page(id)
	if err != nil {
		return err
	}
	switch {
	case flags == leafPage:
		return p.leaf(id, count, body, path, low, high)
	case flags != branchPage || count == 0:
		return fmt.Errorf("page %d is none of a bucket's", id)
	}
	type branch struct {
		key  []byte
		page uint64
	}
	all := make([]branch, count)
	for i := range all {
		e := uint64(i) * elementSize
		if e+elementSize > uint64(len(body)) {
			return fmt.Errorf("page %d has too many elements", id)
		}
		key, _, err := part(body, count, e, binary.NativeEndian.Uint32(body[e:]), binary.NativeEndian.Uint32(body[e+4:]), 0)
		if err != nil {
			return fmt.Errorf("page %d: %w", id, err)
		}
		all[i] = branch{key, binary.NativeEndian.Uint64(body[e+8:])}
	}
	for i, b := range all {
		to := high
		if i+1 < len(all) {
			to = all[i+1].key
		}
		if i == 0 && low != nil && !bytes.Equal(b.key, low) || to != nil && bytes.Compare(b.key, to) >= 0 {
			return fmt.Errorf("page %d: its keys are out of order", id)
		}
		if err := p.tree(b.page, path, b.key, to); err != nil {
			return err
		}
	}
	return nil
}

func (p *pages) leaf(id uint64, count uint16, body []byte, path [][]byte, low, high []byte) error {
	if count == 0 && low != nil {
		return fmt.Errorf("page %d is empty", id)
	}
	var last []byte
	for i := range count {
		e := uint64(i) * elementSize
		if e+elementSize > uint64(len(body)) {
			return fmt.Errorf("page %d has too many elements", id)
		}
		number := func(at uint64) uint32 { return binary.NativeEndian.Uint32(body[e+at:]) }
		key, value, err := part(body, count, e, number(4), number(8), number(12))
		switch {
		case err != nil:
			return fmt.Errorf("page %d: %w", id, err)
		case len(key) == 0, number(0)&^isBucket != 0:
			return fmt.Errorf("page %d: element %d is none", id, i)
		case i == 0 && low != nil && !bytes.Equal(key, low), i > 0 && bytes.Compare(key, last) <= 0, high != nil && bytes.Compare(key, high) >= 0:
			return fmt.Errorf("page %d: its keys are out of order", id)
		case number(0) == 0:
			p.see(path, key, value)
		default:
			p.see(path, key, nil)
			if err := p.bucket(id, value, append(path[:len(path):len(path)], key)); err != nil {
				return err
			}
		}
		last = key
	}
	return nil
}

// bucket goes through a bucket that is the value of an element on that page.
func (p *pages) bucket(on uint64, value []byte, path [][]byte) error {
	if len(value) < bucketHeader {
		return fmt.Errorf("page %d: bucket %.80q is cut short", on, path[len(path)-1])
	}
	if root := binary.NativeEndian.Uint64(value); root != 0 {
		return p.tree(root, path, nil, nil)
	}
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || binary.NativeEndian.Uint16(inline[8:]) != leafPage {
		return fmt.Errorf("page %d: bucket %.80q is cut short", on, path[len(path)-1])
	}
	return p.leaf(on, binary.NativeEndian.Uint16(inline[10:]), inline[pageHeader:], path, nil, nil)
}

// part gives the key and the value of the element at e, which lie behind all elements of the page.
func part(body []byte, count uint16, e uint64, at, key, value uint32) (k, v []byte, err error) {
	from := e + uint64(at)
	mid, end := from+uint64(key), from+uint64(key)+uint64(value)
	if from < uint64(count)*elementSize || end > uint64(len(body)) {
		return nil, nil, errors.New("an element leads out of the page")
	}
	return body[from:mid], body[mid:end], nil
}

// free looks at the list of free pages, if there is one: devmgrd keeps none in the file, and other tools may.
func (p *pages) free() error {
	if p.head.freelist == noFreelist {
		return nil
	}
	flags, count, body, err := p.page(p.head.freelist)
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
		if id <= last || id >= p.head.end || p.used[id] {
			return fmt.Errorf("page %d is said to be free", id)
		}
		last = id
	}
	return nil
}
