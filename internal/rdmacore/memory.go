//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// pd is a protection domain.
type pd struct {
	dev  *device
	c    *C.struct_ibv_pd
	refs refs // MRs and QPs
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
	mem        []byte // whole pages
	size       int
	lkey, rkey uint32
	refs       refs
}

// AllocMR maps the memory itself: it must not move, and a child process must not share its pages, since copy-on-write would take them
// from under the device.
func (p *pd) AllocMR(size int, access verbs.Access) (verbs.MR, error) {
	if size <= 0 {
		return nil, sysErr("ibv_reg_mr", int(syscall.EINVAL))
	}
	if limit := p.dev.attr.MaxMRSize; uint64(size) > limit {
		return nil, &verbs.LimitError{What: "bytes of a memory region", Got: uint64(size), Max: limit}
	}
	if err := p.dev.check(); err != nil {
		return nil, err
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	m := &mr{pd: p, size: size}
	if err := p.dev.p.calls.do(func() error { return m.register(access) }); err != nil {
		p.refs.release()
		return nil, err
	}
	return m, nil
}

func (m *mr) register(access verbs.Access) error {
	page := os.Getpagesize()
	rounded := (m.size + page - 1) / page * page
	mem, err := syscall.Mmap(-1, 0, rounded, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	if err = os.NewSyscallError("madvise", syscall.Madvise(mem, syscall.MADV_DONTFORK)); err == nil {
		var lkey, rkey C.uint32_t
		errno := C.rc_reg_mr(m.pd.c, unsafe.Pointer(&mem[0]), C.size_t(m.size), C.int(access), &m.c, &lkey, &rkey)
		err = sysErr("ibv_reg_mr", int(errno))
		m.lkey, m.rkey = uint32(lkey), uint32(rkey)
	}
	if err != nil {
		pinned, limit := memlock()
		syscall.Munmap(mem)
		return registerErr(err, rounded, pinned, limit)
	}
	m.mem = mem
	return nil
}

func (m *mr) Bytes() []byte { return m.mem[:m.size:m.size] }

func (m *mr) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(&m.mem[0]))) }

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
		unmap = os.NewSyscallError("munmap", syscall.Munmap(m.mem))
		m.pd.refs.release()
		return nil
	})
	if err != nil {
		return err
	}
	return unmap
}

// memlock returns what the process has pinned and RLIMIT_MEMLOCK, in bytes.
func memlock() (pinned, limit uint64) {
	const rlimitMemlock = 8
	var r syscall.Rlimit
	if syscall.Getrlimit(rlimitMemlock, &r) != nil {
		return 0, rlimInfinity
	}
	return pinnedMemory(), r.Cur
}

// pinnedMemory is VmPin of the process, where the kernel counts registered memory.
func pinnedMemory() uint64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		if rest, ok := bytes.CutPrefix(s.Bytes(), []byte("VmPin:")); ok {
			kib, _ := strconv.ParseUint(string(bytes.TrimSpace(bytes.TrimSuffix(rest, []byte("kB")))), 10, 64)
			return kib << 10
		}
	}
	return 0
}
