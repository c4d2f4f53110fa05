package softiwarp

import (
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// pd is a protection domain.
type pd struct {
	dev  *device
	refs refs // MRs and QPs
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
	mem    []byte // whole pages
	size   int
	key    uint32
	access verbs.Access

	// revoked says that the peer has invalidated the key, for itself.
	revoked atomic.Bool

	// state counts who is touching the memory right now, for the time of one system call or copy; with mrClosed nobody may any
	// more. A user that closes a region too early thus gets errors, not a crash.
	state atomic.Int64
	idle  chan struct{} // closed when the last has left a closed region
}

const mrClosed = 1 << 32

func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	m, err := p.register(size, access)
	if err != nil {
		p.refs.release()
		return nil, err
	}
	return m, nil
}

func (p *pd) register(size int, access verbs.Access) (*mr, error) {
	const remoteChange = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	all := verbs.AccessLocalWrite | verbs.AccessRemoteRead | remoteChange
	switch {
	case size <= 0, access&^all != 0, access&remoteChange != 0 && access&verbs.AccessLocalWrite == 0:
		return nil, os.NewSyscallError("AllocMR", syscall.EINVAL)
	case uint64(size) > p.dev.attr.MaxMRSize:
		return nil, &verbs.LimitError{What: "bytes of a memory region", Got: uint64(size), Max: p.dev.attr.MaxMRSize}
	}
	page := os.Getpagesize()
	mem, err := mapMemory((size + page - 1) / page * page)
	if err != nil {
		return nil, err
	}
	m := &mr{pd: p, mem: mem, size: size, access: access, idle: make(chan struct{})}
	if !p.dev.mrs.add(m, p.dev.attr.MaxMR) {
		_ = unmapMemory(mem)
		return nil, os.NewSyscallError("AllocMR", syscall.ENOMEM)
	}
	p.dev.count(&p.dev.open.mrs, 1)
	return m, nil
}

func (m *mr) Bytes() []byte { return m.mem[:m.size:m.size] }

func (m *mr) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(&m.mem[0]))) }

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
	err := unmapMemory(m.mem)
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
	base := m.Addr()
	size := uint64(m.size)
	if addr < base || n > size || addr-base > size-n {
		return nil, false
	}
	return m.mem[addr-base:][:n:n], true
}
