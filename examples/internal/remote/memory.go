package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// Memory is an owner's memory as a client sees it. One goroutine uses it at a time.
type Memory struct {
	conn    *end.Conn
	objects *end.Objects
	forget  func() bool

	addr uint64
	rkey uint32
	size int
}

const (
	maxWRs = 8  // in one Do
	word   = 8  // bytes; where results of atomics and of Load arrive, at the start of the client's memory
	local  = 64 // where Data begins
)

// Dial connects to an owner. data is the number of bytes that one READ or WRITE may have.
func Dial(ctx context.Context, addr netip.AddrPort, data int) (*Memory, error) {
	id, err := end.Resolve(ctx, addr)
	if err != nil {
		return nil, err
	}
	if err := end.Need(id.Device(), operations...); err != nil {
		return nil, errors.Join(err, id.Close())
	}
	objects, err := end.NewObjects(id.Device(), local+data, verbs.AccessLocalWrite, maxWRs)
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	conn, err := end.NewConn(ctx, id, objects.PD, verbs.QPOptions{
		SendCQ: objects.CQ, RecvCQ: objects.CQ,
		Cap: verbs.QPCap{MaxSendWR: maxWRs, MaxRecvWR: 1, MaxSendSGE: 1, MaxInline: word},
	})
	if err != nil {
		return nil, errors.Join(err, objects.Close(), id.Close())
	}
	m := &Memory{conn: conn, objects: objects, forget: objects.WakeAtEnd(conn.Gone())}
	reply, err := id.Connect(ctx, end.Param(nil))
	if err == nil {
		err = m.take(reply.PrivateData)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *Memory) take(ticket []byte) error {
	if len(ticket) < 16 {
		return fmt.Errorf("%d bytes of private data, want 16: the peer is no owner of memory", len(ticket))
	}
	m.addr = binary.BigEndian.Uint64(ticket)
	m.rkey = binary.BigEndian.Uint32(ticket[8:])
	m.size = int(binary.BigEndian.Uint32(ticket[12:]))
	return nil
}

// Device is the client's device.
func (m *Memory) Device() verbs.Device { return m.conn.ID.Device() }

// Size is the size of the owner's memory in bytes.
func (m *Memory) Size() int { return m.size }

// Data is the client's memory, which READs fill and WRITEs empty.
func (m *Memory) Data() []byte { return m.objects.MR.Bytes()[local:] }

// Read is a READ of n bytes of the owner's, into Data.
func (m *Memory) Read(off, n int) verbs.SendWR {
	return m.wr(verbs.OpRDMARead, off, m.objects.SGE(local, n))
}

// Write is a WRITE of the first n bytes of Data.
func (m *Memory) Write(off, n int) verbs.SendWR {
	return m.wr(verbs.OpRDMAWrite, off, m.objects.SGE(local, n))
}

// Load is a READ of one word; Do returns it. Devices fetch an aligned word in one piece, though no specification says so; who needs a
// promise uses FetchAdd of 0, which the device does one by one with all other atomics on the word.
func (m *Memory) Load(off int) verbs.SendWR {
	return m.wr(verbs.OpRDMARead, off, m.objects.SGE(0, word))
}

// Store is a WRITE of one word.
func (m *Memory) Store(off int, v uint64) verbs.SendWR {
	wr := m.wr(verbs.OpRDMAWrite, off, nil)
	wr.Inline = binary.NativeEndian.AppendUint64(nil, v)
	return wr
}

// FetchAdd adds to a word; Do returns what it was before.
func (m *Memory) FetchAdd(off int, add uint64) verbs.SendWR {
	wr := m.wr(verbs.OpAtomicFetchAndAdd, off, m.objects.SGE(0, word))
	wr.CompareAdd = add
	return wr
}

// CompareAndSwap replaces a word if it is old; Do returns what it was before.
func (m *Memory) CompareAndSwap(off int, old, new uint64) verbs.SendWR {
	wr := m.wr(verbs.OpAtomicCmpAndSwp, off, m.objects.SGE(0, word))
	wr.CompareAdd, wr.Swap = old, new
	return wr
}

func (m *Memory) wr(op verbs.Opcode, off int, sgl []verbs.SGE) verbs.SendWR {
	return verbs.SendWR{Opcode: op, RemoteAddr: m.addr + uint64(off), RKey: m.rkey, SGL: sgl}
}

// Do posts requests, waits for the last one, and returns the word that arrived last. A READ or atomic sees what requests before it have
// written. So one that is last also tells that they have arrived, which the completion of a WRITE does not on iWARP.
func (m *Memory) Do(wrs ...verbs.SendWR) (uint64, error) {
	wrs[len(wrs)-1].Flags |= verbs.Signaled // the others complete only if they fail
	if _, err := m.conn.QP.PostSend(wrs); err != nil {
		return 0, err
	}
	var wcs [1]verbs.Completion
	if _, err := m.objects.Wait(m.conn.Gone(), wcs[:]); err != nil {
		return 0, err
	}
	if err := wcs[0].Err(); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(m.objects.MR.Bytes()), nil
}

// Close ends the connection.
func (m *Memory) Close() error {
	m.forget()
	return errors.Join(m.conn.Close(), m.objects.Close())
}
