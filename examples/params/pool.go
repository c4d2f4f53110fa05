package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/rconn/rdma/examples/internal/remote"
)

// The owner's memory is a word and two buffers for the vector.
//
// The word counts: it is odd while a writer is at work, and half of it is the number of the last version that is complete. So
// it is the writers' lock (who makes it odd by compare-and-swap is the writer), the version word and, by its second bit, the index of
// the current buffer. Only atomics change it.
const (
	countAt  = 0
	buffers  = 64 // where they begin: the word has a cache line of its own
	wordSize = 8
)

func poolSize(words int) int { return buffers + 2*wordSize*words }

// way is how readers are kept from torn vectors.
type way int

const (
	inPlace  way = iota // not at all
	version             // one buffer; a reader looks at the count before and after
	twoBufs             // the writer fills the buffer that is not current
	wayCount            // of ways
)

func (w way) String() string { return [...]string{"in place", "version word", "two buffers"}[w] }

// pool is the vector as a client sees it. Writers and readers must agree on the way.
type pool struct {
	mem   *remote.Memory
	way   way
	words int
}

func openPool(ctx context.Context, addr netip.AddrPort, w way, words int) (*pool, error) {
	mem, err := remote.Dial(ctx, addr, words*wordSize)
	if err != nil {
		return nil, err
	}
	if mem.Size() != poolSize(words) {
		return nil, errors.Join(fmt.Errorf("the owner has %d bytes, %d words need %d: give both the same -words", mem.Size(), words, poolSize(words)), mem.Close())
	}
	return &pool{mem: mem, way: w, words: words}, nil
}

// buffer is where version n is.
func (p *pool) buffer(n uint64) int {
	if p.way == twoBufs && n%2 == 1 {
		return buffers + wordSize*p.words
	}
	return buffers
}

// update makes the next version, and publishes it by an atomic: unlike a WRITE, it is executed after the WRITE before it on every transport,
// and its completion says that both have been done.
func (p *pool) update() error {
	count, err := p.lock()
	if err != nil {
		return err
	}
	n := count/2 + 1
	fill(p.mem.Data(), n)
	_, err = p.mem.Do(p.mem.Write(p.buffer(n), wordSize*p.words), p.mem.FetchAdd(countAt, 1))
	return err
}

// lock makes the count odd and returns what it was. Its completion comes before the first byte of the new version is sent: readers
// must not see any of that without seeing an odd count.
func (p *pool) lock() (uint64, error) {
	for {
		count, err := p.mem.Do(p.mem.Load(countAt))
		if err != nil {
			return 0, err
		}
		if count%2 == 0 {
			was, err := p.mem.Do(p.mem.CompareAndSwap(countAt, count, count+1))
			if err != nil || was == count {
				return count, err
			}
		}
		time.Sleep(rand.N(100 * time.Microsecond)) // another writer is at work
	}
}

// errOvertaken says that a writer was at work while the vector was read: it may be torn.
var errOvertaken = errors.New("overtaken by a writer")

// read reads the vector once. Each READ is awaited before the next is posted: a device may take its bytes in any order, and those of
// two READs at the same time.
func (p *pool) read() ([]byte, error) {
	if p.way == inPlace {
		return p.vector(buffers)
	}
	before, err := p.mem.Do(p.mem.Load(countAt))
	if err != nil {
		return nil, err
	}
	if !p.way.intact(before, before) {
		return nil, errOvertaken // in vain
	}
	n := before / 2
	b, err := p.vector(p.buffer(n))
	if err != nil {
		return nil, err
	}
	after, err := p.mem.Do(p.mem.Load(countAt))
	if err != nil {
		return nil, err
	}
	if !p.way.intact(before, after) {
		return nil, errOvertaken
	}
	if got, ok := check(b); ok && got != n {
		return nil, fmt.Errorf("read version %d where %d was published", got, n)
	}
	return b, nil
}

// intact reports whether a vector is of one version if it was read between two looks at the count.
func (w way) intact(before, after uint64) bool {
	switch w {
	case version:
		return before%2 == 0 && after == before
	case twoBufs:
		// Version n+1 goes elsewhere. Version n+2, which goes where n was, is begun when the count becomes 2(n+1)+1.
		n := before / 2
		return after <= 2*n+2
	}
	return true
}

func (p *pool) vector(off int) ([]byte, error) {
	_, err := p.mem.Do(p.mem.Read(off, wordSize*p.words))
	return p.mem.Data(), err
}

// fill makes version n of the vector: parameter i is n times i+1.
func fill(b []byte, n uint64) {
	for i := range len(b) / wordSize {
		v := float64(n) * float64(i+1)
		binary.NativeEndian.PutUint64(b[wordSize*i:], math.Float64bits(v))
	}
}

// check returns the version of a vector; ok is false if it is mixed from several.
func check(b []byte) (n uint64, ok bool) {
	first := parameter(b, 0)
	for i := range len(b) / wordSize {
		if parameter(b, i) != first*float64(i+1) {
			return 0, false
		}
	}
	return uint64(first), true
}

func parameter(b []byte, i int) float64 {
	return math.Float64frombits(binary.NativeEndian.Uint64(b[wordSize*i:]))
}
