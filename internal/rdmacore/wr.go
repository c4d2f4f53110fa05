package rdmacore

import (
	"fmt"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// The opcodes of the types of QP, and those that have things in common.
var (
	udOps = verbs.Opcodes(verbs.OpSend, verbs.OpSendWithImm)
	ucOps = udOps | verbs.Opcodes(verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm)

	atomics   = verbs.Opcodes(verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd)
	answered  = atomics | verbs.Opcodes(verbs.OpRDMARead)
	inlinable = ucOps
)

// typeOps are the opcodes that a type of QP has.
func typeOps(t verbs.QPType) verbs.OpcodeSet {
	switch t {
	case verbs.UD:
		return udOps
	case verbs.UC:
		return ucOps
	}
	return ^verbs.OpcodeSet(0)
}

// noOpcode is the refusal of an opcode that the device, or else the type of QP, does not have.
func noOpcode(device string, t verbs.QPType, has verbs.OpcodeSet, op verbs.Opcode) error {
	what := op.String()
	if has.Has(op) {
		what += fmt.Sprintf(" on a %v queue pair", t)
	}
	return &verbs.UnsupportedError{Device: device, What: what}
}

var (
	errNotConnected = fmt.Errorf("%w: PostSend before the connection is made", syscall.EINVAL)
	errReset        = fmt.Errorf("%w: PostRecv before the queue pair is in the state INIT", syscall.EINVAL)
	errHasSRQ       = fmt.Errorf("%w: PostRecv on a queue pair with a shared receive queue: post to that", syscall.EINVAL)
	errOtherPD      = fmt.Errorf("%w: the objects are of different protection domains", syscall.EINVAL)
	errNoAH         = fmt.Errorf("%w: a request of a UD queue pair without an address handle", syscall.EINVAL)

	// errNoReads is said here because Linux's Soft-RoCE lets such a request wait for ever.
	errNoReads = fmt.Errorf("%w: a READ or atomic on a queue pair whose initiator depth is 0 (cm.ConnParam.InitiatorDepth, "+
		"verbs.QPAttr.MaxRdAtomic)", syscall.EINVAL)
)

// checkQPOptions refuses sizes that the device does not have, by name, and fills in what was left out.
func checkQPOptions(attr *verbs.DeviceAttr, o *verbs.QPOptions) error {
	c := &o.Cap
	if o.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	for _, n := range []int{c.MaxSendWR, c.MaxRecvWR, c.MaxSendSGE, c.MaxRecvSGE, c.MaxInline} {
		if n < 0 {
			return fmt.Errorf("%w: negative queue pair capability", syscall.EINVAL)
		}
	}
	c.MaxSendSGE = max(c.MaxSendSGE, 1)
	if o.SRQ == nil {
		c.MaxRecvSGE = max(c.MaxRecvSGE, 1)
	}
	for _, l := range []struct {
		what     string
		got, max int
	}{
		{"send queue entries", c.MaxSendWR, attr.MaxQPWR},
		{"receive queue entries", c.MaxRecvWR, attr.MaxQPWR},
		{"scatter/gather entries of a send", c.MaxSendSGE, attr.MaxSGE},
		{"scatter/gather entries of a receive", c.MaxRecvSGE, attr.MaxSGE},
	} {
		if l.got > l.max {
			return &verbs.LimitError{What: l.what, Got: uint64(l.got), Max: uint64(l.max)}
		}
	}
	c.MaxInline = min(c.MaxInline, maxInline)
	return nil
}

// checkSRQOptions does the same for a shared receive queue.
func checkSRQOptions(device string, attr *verbs.DeviceAttr, o *verbs.SRQOptions) error {
	switch {
	case attr.MaxSRQ == 0:
		return &verbs.UnsupportedError{Device: device, What: "shared receive queues"}
	case o.MaxWR < 1 || o.MaxSGE < 0:
		return fmt.Errorf("%w: a shared receive queue of %d entries of %d pieces", syscall.EINVAL, o.MaxWR, o.MaxSGE)
	case o.MaxWR > attr.MaxSRQWR:
		return &verbs.LimitError{What: "entries of a shared receive queue", Got: uint64(o.MaxWR), Max: uint64(attr.MaxSRQWR)}
	case o.MaxSGE > attr.MaxSRQSGE:
		return &verbs.LimitError{
			What: "scatter/gather entries of a receive of a shared receive queue", Got: uint64(o.MaxSGE), Max: uint64(attr.MaxSRQSGE),
		}
	}
	o.MaxSGE = max(o.MaxSGE, 1)
	return nil
}

// maxInline bounds the buffer that a QP has for inline payload. No device takes as much.
const maxInline = 4096

// checkSend refuses a request that the QP cannot take, but for its opcode. The device would, too, but not by name.
func checkSend(limits *verbs.QPCap, readSGE int, wr *verbs.SendWR) error {
	if n := len(wr.Inline); n > 0 {
		if !inlinable.Has(wr.Opcode) {
			return fmt.Errorf("%w: %v has no inline payload", syscall.EINVAL, wr.Opcode)
		}
		if n > limits.MaxInline {
			return &verbs.LimitError{What: "bytes of inline payload", Got: uint64(n), Max: uint64(limits.MaxInline)}
		}
		return nil
	}
	limit := limits.MaxSendSGE
	if answered.Has(wr.Opcode) && readSGE > 0 {
		limit = min(limit, readSGE)
	}
	if err := checkSGL(len(wr.SGL), limit); err != nil || !atomics.Has(wr.Opcode) {
		return err
	}
	return checkAtomic(wr)
}

// checkAtomic is for libraries that print something before they refuse such a request.
func checkAtomic(wr *verbs.SendWR) error {
	switch {
	case wr.RemoteAddr%8 != 0:
		return fmt.Errorf("%w: the address of an atomic, %#x, is not a multiple of 8", syscall.EINVAL, wr.RemoteAddr)
	case len(wr.SGL) != 1 || wr.SGL[0].Length != 8:
		return fmt.Errorf("%w: the result of an atomic goes to one piece of 8 bytes", syscall.EINVAL)
	}
	return nil
}

// checkDatagram refuses payload that does not fit in one packet, which the device would drop without a word (IBTA C10-93.1.1), and
// a QP number of more bits than a packet has for it, which would name another QP.
func checkDatagram(wr *verbs.SendWR, mtu int) error {
	if wr.RemoteQPNum > max24 {
		return &verbs.LimitError{What: "queue pair number", Got: uint64(wr.RemoteQPNum), Max: max24}
	}
	n := uint64(len(wr.Inline))
	if n == 0 {
		for i := range wr.SGL {
			n += uint64(wr.SGL[i].Length)
		}
	}
	if n > uint64(mtu) {
		return &verbs.LimitError{What: "bytes of a UD message", Got: n, Max: uint64(mtu)}
	}
	return nil
}

func checkSGL(n, limit int) error {
	if n > limit {
		return &verbs.LimitError{What: "scatter/gather entries", Got: uint64(n), Max: uint64(limit)}
	}
	return nil
}

// copySGL copies the entries that are not empty. Linux 6.1 does not survive an empty one before others that soft-iWARP sends, and in
// the descriptors of Mellanox's devices 0 stands for 2^31 bytes, which the library leaves to the caller for receives of an SRQ (mlx5).
func copySGL(to, sgl []verbs.SGE) (n int) {
	for i := range sgl {
		if sgl[i].Length > 0 {
			to[n] = sgl[i]
			n++
		}
	}
	return n
}
