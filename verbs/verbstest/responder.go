package verbstest

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"github.com/rconn/rdma/verbs"
)

// This file is what a device does for its peer, by either protocol.

// atomicSize is the number of bytes that an atomic works on.
const atomicSize = 8

// serve does what a request of the peer's asks for, with n bytes, and returns what the requester learns on InfiniBand. What a READ or
// atomic brings back is appended to result.
func (q *qp) serve(wr *verbs.SendWR, n uint64, payload []byte, result *[]byte) verbs.Status {
	switch wr.Opcode {
	case verbs.OpRDMARead:
		from := q.pd.remote(wr.RKey, wr.RemoteAddr, n, verbs.AccessRemoteRead)
		if from == nil && n > 0 { // without payload the address is not looked at
			return q.refuse(verbs.EventQPAccessErr, verbs.StatusRemAccessErr)
		}
		*result = appendMemory(*result, from)

	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		if wr.RemoteAddr%atomicSize != 0 {
			return q.refuse(verbs.EventQPReqErr, verbs.StatusRemInvReqErr)
		}
		at := q.pd.remote(wr.RKey, wr.RemoteAddr, atomicSize, verbs.AccessRemoteAtomic)
		switch {
		case at == nil:
			return q.refuse(verbs.EventQPAccessErr, verbs.StatusRemAccessErr)
		case uintptr(unsafe.Pointer(&at[0]))%atomicSize != 0: // addresses of the caller's memory that begin at 0
			return q.refuse(verbs.EventQPReqErr, verbs.StatusRemInvReqErr)
		}
		*result = binary.NativeEndian.AppendUint64(*result, execute(wr, (*uint64)(unsafe.Pointer(&at[0]))))

	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		if n > 0 {
			to := q.pd.remote(wr.RKey, wr.RemoteAddr, n, verbs.AccessRemoteWrite)
			if to == nil {
				return q.refuse(verbs.EventQPAccessErr, verbs.StatusRemAccessErr)
			}
			place(to, payload)
		}

	default:
		return q.receive(wr, payload)
	}
	return verbs.StatusSuccess
}

// refuse moves the QP to the error state because of what the peer has sent.
func (q *qp) refuse(e verbs.AsyncEventType, status verbs.Status) verbs.Status {
	q.fatal(e)
	return status
}

// execute does an atomic and returns the old value. The memory may be looked at by the program at any time.
func execute(wr *verbs.SendWR, p *uint64) uint64 {
	if wr.Opcode == verbs.OpAtomicFetchAndAdd {
		return atomic.AddUint64(p, wr.CompareAdd) - wr.CompareAdd
	}
	for {
		old := atomic.LoadUint64(p)
		if old != wr.CompareAdd || atomic.CompareAndSwapUint64(p, old, wr.Swap) {
			return old
		}
	}
}

// place writes a payload to registered memory. Small ones in whole words, as a device would: some protocols look at memory that is
// being written. Not inlined, as appendMemory.
//
//go:noinline
func place(to, payload []byte) {
	if len(payload) != 16 || uintptr(unsafe.Pointer(&to[0]))%8 != 0 {
		copy(to, payload)
		return
	}
	for i := 0; i < len(payload); i += 8 {
		atomic.StoreUint64((*uint64)(unsafe.Pointer(&to[i])), binary.NativeEndian.Uint64(payload[i:]))
	}
}

// receive puts the payload of a SEND into the oldest receive request.
func (q *qp) receive(wr *verbs.SendWR, payload []byte) verbs.Status {
	sgl := q.receives().at(0).SGL
	switch {
	case uint64(len(payload)) > length(sgl):
		q.completeRecv(verbs.Completion{Status: verbs.StatusLocLenErr}, 0)
		return q.refuse(verbs.EventQPReqErr, verbs.StatusRemInvReqErr)
	case !q.pd.scatter(sgl, 0, payload):
		q.completeRecv(verbs.Completion{Status: verbs.StatusLocProtErr}, 0)
		return q.refuse(verbs.EventQPFatal, verbs.StatusRemOpErr)
	}
	wc := verbs.Completion{Opcode: verbs.WCRecv, ByteLen: uint32(len(payload))}
	switch wr.Opcode {
	case verbs.OpSendWithImm:
		wc.Flags, wc.Imm = verbs.WCWithImm, wr.Imm
	case verbs.OpSendWithInv:
		if !q.pd.invalidate(wr.InvalidateRKey) {
			q.completeRecv(verbs.Completion{Status: verbs.StatusWRFlushErr}, 0) // its memory is written
			return q.refuse(verbs.EventQPAccessErr, verbs.StatusRemAccessErr)
		}
		wc.Flags, wc.InvalidatedRKey = verbs.WCWithInv, wr.InvalidateRKey
	}
	q.completeRecv(wc, wr.Flags)
	return verbs.StatusSuccess
}

// receiveImm completes the oldest receive request with the immediate data of a WRITE of n bytes.
func (q *qp) receiveImm(wr *verbs.SendWR, n uint32) {
	q.completeRecv(verbs.Completion{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ByteLen: n, Imm: wr.Imm}, wr.Flags)
}
