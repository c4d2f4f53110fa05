package softiwarp

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// pd is a protection domain.
type pd struct {
	dev  *device
	refs refs // MRs, QPs and SRQs
}

func (p *pd) Device() verbs.Device { return p.dev }

func (p *pd) Close() error {
	last, err := p.refs.close()
	if last {
		p.dev.count(&p.dev.open.pds, -1)
	}
	return err
}

// mr is a memory region. Its key is its STag, here and at the peer, and is random: who cannot guess it cannot reach the memory.
type mr struct {
	pd     *pd
	mem    atomic.Pointer[[]byte] // nil once it is closed: whoever still knows the region does not keep its memory
	start  uintptr                // of the memory
	base   uint64                 // address of the first byte in work requests
	key    uint32
	access verbs.Access
	free   func() error // gives the memory back

	// revoked says that the peer has invalidated the key, for itself.
	revoked atomic.Bool

	// state counts who is touching the memory right now, for the time of one system call or copy; with mrClosed nobody may any
	// more. A user that closes a region too early thus gets errors, not a crash.
	state atomic.Int64
	idle  chan struct{} // closed when the last has left a closed region
}

const mrClosed = 1 << 32

const (
	remoteAccess = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	remoteChange = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

	// hints are flags that ask for nothing here: memory is never locked, pages may have any size, and bytes are placed in
	// whatever order they come.
	hints = verbs.AccessOnDemand | verbs.AccessHugeTLB | verbs.AccessRelaxedOrdering

	allFlags = verbs.AccessLocalWrite | remoteAccess | verbs.AccessZeroBased | hints
)

func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	return p.register("AllocMR", size, access, func(m *mr) ([]byte, error) {
		page := os.Getpagesize()
		pages, err := mapMemory((size + page - 1) / page * page)
		if err != nil {
			return nil, err
		}
		m.free = func() error { return unmapMemory(pages) }
		return pages[:size:size], nil
	})
}

// pinned has the pins of open regions. One that is collected ends the program, but a program may forget a device with all that is open.
var pinned sync.Map

// RegMR pins the memory. Go does not move it in any case, but a program may rely on what pinning allows.
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	return p.register("RegMR", len(mem), access, func(m *mr) ([]byte, error) {
		pin := new(runtime.Pinner)
		pin.Pin(&mem[0])
		pinned.Store(pin, nil)
		m.free = func() error {
			pinned.Delete(pin)
			pin.Unpin()
			return nil
		}
		return mem[:len(mem):len(mem)], nil
	})
}

// register makes a region of memory that provide brings.
func (p *pd) register(call string, size int, access verbs.Access, provide func(*mr) ([]byte, error)) (verbs.MR, error) {
	attr := &p.dev.attr
	switch unknown := access &^ allFlags; {
	case unknown != 0:
		return nil, p.dev.lacks(fmt.Sprintf("access flags %#x", uint32(unknown)))
	case size <= 0:
		return nil, misuse("%s of %d bytes", call, size)
	case access&remoteChange != 0 && access&verbs.AccessLocalWrite == 0:
		return nil, misuse("remote write or atomic access without AccessLocalWrite")
	case uint64(size) > attr.MaxMRSize:
		return nil, &verbs.LimitError{What: "bytes of a memory region", Got: uint64(size), Max: attr.MaxMRSize}
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	m := &mr{pd: p, access: access, idle: make(chan struct{})}
	mem, err := provide(m)
	if err != nil {
		p.refs.release()
		return nil, err
	}
	m.hold(mem)
	if access&verbs.AccessZeroBased == 0 {
		m.base = uint64(m.start)
	}
	if !p.dev.mrs.add(m, attr.MaxMR) {
		_ = m.free()
		p.refs.release()
		return nil, os.NewSyscallError(call, syscall.ENOMEM)
	}
	p.dev.count(&p.dev.open.mrs, 1)
	return m, nil
}

func (m *mr) hold(mem []byte) {
	m.mem.Store(&mem)
	m.start = uintptr(unsafe.Pointer(&mem[0]))
}

func (m *mr) Bytes() []byte {
	if mem := m.mem.Load(); mem != nil {
		return *mem
	}
	return nil
}

func (m *mr) Addr() uint64 { return m.base }

func (m *mr) LKey() uint32 { return m.key }

func (m *mr) RKey() uint32 { return m.key }

func (m *mr) Close() error {
	for {
		n := m.state.Load()
		if n&mrClosed != 0 {
			<-m.idle
			return nil
		}
		if m.state.CompareAndSwap(n, n|mrClosed) {
			if n == 0 {
				close(m.idle)
			}
			break
		}
	}
	m.pd.dev.mrs.remove(m.key)
	<-m.idle
	m.mem.Store(nil)
	err := m.free()
	m.free = nil
	m.pd.refs.release()
	m.pd.dev.count(&m.pd.dev.open.mrs, -1)
	return err
}

// use keeps the memory mapped until done. False: the region is closed. Nobody may block in between.
func (m *mr) use() bool {
	for {
		n := m.state.Load()
		if n&mrClosed != 0 {
			return false
		}
		if m.state.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (m *mr) done() {
	if m.state.Add(-1) == mrClosed {
		close(m.idle)
	}
}

// slice is n bytes at addr, if the region has them; the comparison cannot overflow.
func (m *mr) slice(addr, n uint64) ([]byte, bool) {
	mem := m.Bytes()
	size := uint64(len(mem))
	if addr < m.base || n > size || addr-m.base > size-n {
		return nil, false
	}
	return mem[addr-m.base:][:n:n], true
}

// lookup finds memory of this side by its local keys, and remembers the last region.
type lookup struct {
	pd   *pd
	last *mr
}

func (l *lookup) find(s verbs.SGE, access verbs.Access) (seg, bool) {
	if s.Length == 0 {
		return seg{}, true
	}
	m := l.last
	if m == nil || m.key != s.LKey || m.state.Load()&mrClosed != 0 {
		m = l.pd.dev.mrs.find(s.LKey)
	}
	if m == nil || m.pd != l.pd || m.access&access != access {
		return seg{}, false
	}
	b, ok := m.slice(s.Addr, uint64(s.Length))
	l.last = m
	return seg{m, b}, ok
}

// seg is a piece of registered memory.
type seg struct {
	mr *mr
	b  []byte
}
