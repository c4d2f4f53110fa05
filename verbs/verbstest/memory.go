package verbstest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

const pageSize = 4096

type pd struct {
	dev    *Device
	mrs    int
	qps    int
	srqs   int
	ahs    int
	closed bool
}

// AllocPD implements verbs.Device.
func (d *Device) AllocPD() (verbs.PD, error) {
	if err := d.call(AllocPD); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	if d.pds >= d.attr.MaxPD {
		return nil, os.NewSyscallError("ibv_alloc_pd", syscall.ENOMEM)
	}
	d.pds++
	d.host.count(&d.host.objects.PDs, 1)
	return &pd{dev: d}, nil
}

func (p *pd) Device() verbs.Device { return p.dev }

func (p *pd) Close() error {
	p.dev.fab.mu.Lock()
	defer p.dev.fab.mu.Unlock()
	switch {
	case p.closed:
		return nil
	case p.mrs > 0 || p.qps > 0 || p.srqs > 0 || p.ahs > 0:
		p.dev.fab.violate("host %s: PD closed with %d MRs and %d QPs open, %d SRQs and %d AHs", p.dev.host.name, p.mrs, p.qps, p.srqs, p.ahs)
		return verbs.ErrBusy
	}
	p.closed = true
	p.dev.pds--
	p.dev.host.count(&p.dev.host.objects.PDs, -1)
	return nil
}

func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if err := p.dev.call(AllocMR); err != nil {
		return nil, err
	}
	defer p.dev.fab.mu.Unlock()
	if err := p.mayRegister(size, access); err != nil {
		return nil, err
	}
	return p.register(&mr{mem: pages(size), access: access}), nil
}

func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	if err := p.dev.call(RegMR); err != nil {
		return nil, err
	}
	defer p.dev.fab.mu.Unlock()
	if err := p.mayRegister(len(mem), access); err != nil {
		return nil, err
	}
	m := &mr{mem: mem[:len(mem):len(mem)], access: access, pin: new(runtime.Pinner)}
	m.pin.Pin(unsafe.SliceData(mem))
	pins.Store(m.pin, nil)
	return p.register(m), nil
}

// pins are those of open regions. One that is collected ends the program, but a test may forget a fabric with all that is open.
var pins sync.Map

func (m *mr) unpin() {
	if m.pin != nil {
		pins.Delete(m.pin)
		m.pin.Unpin()
	}
}

// mayRegister says why memory cannot be registered.
func (p *pd) mayRegister(size int, access verbs.Access) error {
	d := p.dev
	const (
		remoteWriters = verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
		known         = verbs.AccessLocalWrite | verbs.AccessRemoteRead | remoteWriters | verbs.AccessZeroBased | verbs.AccessRelaxedOrdering
	)
	switch {
	case p.closed:
		return verbs.ErrClosed
	case access&^known != 0:
		return &verbs.UnsupportedError{Device: d.cfg.Name, What: fmt.Sprintf("access flags %#x", uint32(access&^known))}
	case size <= 0:
		return os.NewSyscallError("ibv_reg_mr", syscall.EINVAL)
	case access&remoteWriters != 0 && access&verbs.AccessLocalWrite == 0:
		return os.NewSyscallError("ibv_reg_mr", syscall.EINVAL)
	case uint64(size) > d.attr.MaxMRSize:
		return &verbs.LimitError{What: "bytes of a memory region", Got: uint64(size), Max: d.attr.MaxMRSize}
	case d.cfg.Memlock > 0 && d.host.locked+uint64(size) > d.cfg.Memlock:
		return &verbs.MemlockError{Size: size, Limit: d.cfg.Memlock}
	case len(d.mrs) >= d.attr.MaxMR:
		return os.NewSyscallError("ibv_reg_mr", syscall.ENOMEM)
	}
	return nil
}

// register gives a region its keys and its address.
func (p *pd) register(m *mr) *mr {
	d := p.dev
	d.fab.nextKey += 0x101
	m.pd, m.key = p, d.fab.nextKey
	if m.access&verbs.AccessZeroBased == 0 {
		inPage := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.mem)))) % pageSize
		m.addr = d.fab.nextAddr + inPage
		d.fab.nextAddr += (inPage + uint64(len(m.mem)) + 3*pageSize) &^ (pageSize - 1) // unmapped pages between any two
	}
	d.mrs[m.key] = m
	d.host.locked += uint64(len(m.mem))
	p.mrs++
	d.host.count(&d.host.objects.MRs, 1)
	return m
}

// pages returns page-aligned memory. It is of Go's heap, where the race detector sees a program that uses memory while
// the device does.
func pages(size int) []byte {
	b := make([]byte, size+pageSize)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (pageSize - 1)
	return b[skip : skip+size : skip+size]
}

type mr struct {
	pd     *pd
	mem    []byte
	addr   uint64
	key    uint32
	access verbs.Access
	pin    *runtime.Pinner // of memory that is the caller's; else it is the fabric's
	dead   bool            // invalidated by a peer: the keys name nothing any more
	closed bool
}

func (m *mr) Addr() uint64 { return m.addr }
func (m *mr) LKey() uint32 { return m.key }

// RKey differs from LKey, so that one cannot be used for the other.
func (m *mr) RKey() uint32 { return m.key | remoteBit }

const remoteBit = 1 << 31

func (m *mr) Bytes() []byte {
	m.pd.dev.fab.mu.Lock()
	defer m.pd.dev.fab.mu.Unlock()
	return m.mem
}

func (m *mr) Close() error {
	d := m.pd.dev
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	if m.closed {
		return nil
	}
	for _, q := range d.fab.qps {
		if q.dev == d && q.uses(m.key) {
			d.fab.violate("host %s: MR closed while work requests of QP %d name it", d.host.name, q.num)
			break
		}
	}
	for s := range d.srqs {
		if receivesInto(&s.rq, m.key) {
			d.fab.violate("host %s: MR closed while work requests of an SRQ name it", d.host.name)
		}
	}
	m.closed = true
	delete(d.mrs, m.key)
	d.freed[m.key] = true
	d.host.locked -= uint64(len(m.mem))
	m.pd.mrs--
	d.host.count(&d.host.objects.MRs, -1)
	if m.pin == nil {
		// Whoever still looks at the memory sees that it is gone; the race detector sees it too.
		for i := range m.mem {
			m.mem[i] = 0xdb
		}
	}
	m.unpin()
	m.mem = nil
	return nil
}

// receivesInto reports whether a receive request names a memory region.
func receivesInto(rq *fifo[recvReq], key uint32) bool {
	for i := range rq.len() {
		if listsKey(rq.at(i).SGL, key) {
			return true
		}
	}
	return false
}

func listsKey(sgl []verbs.SGE, key uint32) bool {
	return slices.ContainsFunc(sgl, func(s verbs.SGE) bool { return s.LKey == key && s.Length > 0 })
}

// local is the memory that an entry of a work request names, nil if it may not be used so. The length must not be 0.
//
//go:norace
func (p *pd) local(s verbs.SGE, need verbs.Access) []byte {
	if s.LKey&remoteBit != 0 {
		return nil
	}
	return p.find(s.LKey, s.Addr, uint64(s.Length), need)
}

// remote is the memory that a peer's request names.
//
//go:norace
func (p *pd) remote(rkey uint32, addr, length uint64, need verbs.Access) []byte {
	if rkey&remoteBit == 0 {
		return nil
	}
	rkey &^= remoteBit
	m := p.find(rkey, addr, length, need)
	if m == nil && p.dev.freed[rkey] {
		p.dev.fab.violate("host %s: a peer reached for an MR that was closed before its QP", p.dev.host.name)
	}
	return m
}

// invalidate makes the keys of a memory region name nothing.
func (p *pd) invalidate(rkey uint32) bool {
	m := p.dev.mrs[rkey&^remoteBit]
	if rkey&remoteBit == 0 || m == nil || m.pd != p || m.dead {
		return false
	}
	m.dead = true
	return true
}

//go:norace
func (p *pd) find(key uint32, addr, length uint64, need verbs.Access) []byte {
	m := p.dev.mrs[key]
	if m == nil || m.pd != p || m.dead || m.access&need != need {
		return nil
	}
	off := addr - m.addr // wraps below the region to something large
	if off > uint64(len(m.mem)) || length > uint64(len(m.mem))-off {
		return nil
	}
	return m.mem[off : off+length]
}

// gather collects the memory that sgl names, false if a piece may not be read.
func (q *qp) gather(sgl []verbs.SGE) ([]byte, bool) {
	all := q.scratch[:0]
	for _, s := range sgl {
		if s.Length == 0 {
			continue
		}
		m := q.pd.local(s, 0)
		if m == nil {
			return nil, false
		}
		if len(sgl) == 1 {
			return m, true // the caller copies at once
		}
		all = appendMemory(all, m)
	}
	q.scratch = all
	return all, true
}

// scatter places data into the memory that sgl names, from the given byte on, false if a piece may not be written. Not inlined, as
// appendMemory.
//
//go:noinline
func (p *pd) scatter(sgl []verbs.SGE, from uint32, data []byte) bool {
	for _, s := range sgl {
		if s.Length <= from || len(data) == 0 {
			from -= min(from, s.Length)
			continue
		}
		s.Addr += uint64(from)
		s.Length -= from
		from = 0
		m := p.local(s, verbs.AccessLocalWrite)
		if m == nil {
			return false
		}
		data = data[copy(m, data):]
	}
	return true
}

// appendMemory appends what registered memory holds. It is not inlined, so that the race detector sees it.
//
//go:noinline
func appendMemory(to, mem []byte) []byte { return append(to, mem...) }

//go:norace
func length(sgl []verbs.SGE) uint64 {
	var n uint64
	for _, s := range sgl {
		n += uint64(s.Length)
	}
	return n
}
