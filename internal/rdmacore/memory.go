//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// pd is a protection domain.
type pd struct {
	dev  *device
	c    *C.struct_ibv_pd
	refs refs // MRs, QPs, SRQs and AHs
}

func (p *pd) Device() verbs.Device { return p.dev }

func (p *pd) Close() error {
	return p.refs.close(func() error {
		err := p.dev.p.calls.do(func() error { return sysErr("ibv_dealloc_pd", int(C.rc_dealloc_pd(p.c))) })
		if err == nil {
			p.dev.release()
		}
		return err
	})
}

// mr is a memory region with its memory.
type mr struct {
	pd         *pd
	c          *C.struct_ibv_mr
	mem        []byte
	free       func() error // gives the memory back
	addr       uint64       // in work requests
	lkey, rkey uint32
	refs       refs
}

// AllocMR maps the memory itself: it must not move, and a child process must not share its pages, since copy-on-write would take them
// from under the device.
func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	return p.newMR(size, access, func(m *mr) error {
		page := os.Getpagesize()
		mem, err := syscall.Mmap(-1, 0, (size+page-1)/page*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
		if err != nil {
			return os.NewSyscallError("mmap", err)
		}
		m.mem = mem[:size:size]
		m.free = func() error { return os.NewSyscallError("munmap", syscall.Munmap(mem)) }
		return os.NewSyscallError("madvise", syscall.Madvise(mem, syscall.MADV_DONTFORK))
	})
}

// RegMR pins the memory. The device keeps the region, so that memory of a region that the program forgot is not used for something else.
func (p *pd) RegMR(mem []byte, access verbs.Access) (verbs.MR, error) {
	return p.newMR(len(mem), access, func(m *mr) error {
		pin := new(runtime.Pinner)
		pin.Pin(unsafe.SliceData(mem))
		handle := p.dev.objects.add(m)
		m.mem = mem[:len(mem):len(mem)]
		m.free = func() error {
			pin.Unpin()
			p.dev.objects.remove(handle)
			return nil
		}
		return nil
	})
}

// newMR makes a region of what hold fills in: the memory, and how to give it back.
func (p *pd) newMR(size int, access verbs.Access, hold func(*mr) error) (verbs.MR, error) {
	if size <= 0 {
		return nil, sysErr("ibv_reg_mr", int(syscall.EINVAL))
	}
	if limit := p.dev.attr.MaxMRSize; uint64(size) > limit {
		return nil, &verbs.LimitError{What: "bytes of a memory region", Got: uint64(size), Max: limit}
	}
	if err := checkAccess(p.dev.name, access); err != nil {
		return nil, err
	}
	if err := p.dev.check(); err != nil {
		return nil, err
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	m := &mr{pd: p}
	err := p.dev.p.calls.do(func() error {
		err := hold(m)
		if err == nil {
			err = m.register(access)
		}
		if err != nil && m.free != nil {
			m.free()
		}
		return err
	})
	if err != nil {
		p.refs.release()
		return nil, p.dev.orRemoved(err)
	}
	return m, nil
}

// register says which flag it was if the kernel refuses one.
func (m *mr) register(access verbs.Access) error {
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.mem))))
	m.addr = addr
	if access&verbs.AccessZeroBased != 0 {
		if m.pd.dev.isSiw() || C.rc_has_iova() == 0 { // siw takes no notice of the address that is asked for
			return m.pd.lacks(verbs.AccessZeroBased)
		}
		if page := uint64(os.Getpagesize()); addr%page != 0 {
			return errUnaligned(addr, page)
		}
		m.addr = 0
		access &^= verbs.AccessZeroBased // it is the address that says it
	}
	errno := m.call(addr, access)
	if errno != 0 && access&verbs.AccessRelaxedOrdering != 0 { // a hint
		access &^= verbs.AccessRelaxedOrdering
		errno = m.call(addr, access)
	}
	err := sysErr("ibv_reg_mr", errno)
	if special := access &^ basicAccess; special != 0 && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP)) {
		return m.pd.lacks(special)
	}
	if err != nil {
		pinned, limit := memlock()
		return registerErr(err, len(m.mem), pinned, limit)
	}
	return nil
}

func (m *mr) call(addr uint64, access verbs.Access) int {
	var lkey, rkey C.uint32_t
	errno := C.rc_reg_mr(m.pd.c, C.uintptr_t(addr), C.size_t(len(m.mem)), C.uint64_t(m.addr), C.int(access), &m.c, &lkey, &rkey)
	m.lkey, m.rkey = uint32(lkey), uint32(rkey)
	return int(errno)
}

func (p *pd) lacks(flags verbs.Access) error {
	return &verbs.UnsupportedError{Device: p.dev.name, What: accessNames(flags)}
}

func (m *mr) Bytes() []byte { return m.mem }

func (m *mr) Addr() uint64 { return m.addr }

func (m *mr) LKey() uint32 { return m.lkey }

func (m *mr) RKey() uint32 { return m.rkey }

// Close leaves the memory mapped if the kernel refuses to unmap it (it may when that splits a mapping and there are too many): the
// region is gone, and a second Close must not deregister it again.
func (m *mr) Close() error {
	var unmap error
	err := m.refs.close(func() error {
		err := m.pd.dev.p.calls.do(func() error { return sysErr("ibv_dereg_mr", int(C.rc_dereg_mr(m.c))) })
		if err != nil {
			return err
		}
		unmap = m.free()
		m.pd.refs.release()
		return nil
	})
	if err != nil {
		return err
	}
	return unmap
}
