package verbstest

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// This file is the protocols of UC and UD: nobody answers. A message that cannot be taken is dropped, and its sender has success. As
// Linux's Soft-RoCE, a message that is longer than the receive leaves that one for the next.

// mayAddress says what is wrong with where a request of a UD QP goes.
func (q *qp) mayAddress(wr *verbs.SendWR) error {
	a, ok := wr.AH.(*ah)
	n := uint64(len(wr.Inline))
	if n == 0 {
		n = length(wr.SGL)
	}
	switch {
	case wr.AH != nil && (!ok || a.pd.dev != q.dev):
		return verbs.ErrForeign
	case wr.AH == nil || a.pd != q.pd || wr.RemoteQPNum > maxQPNum:
		return os.NewSyscallError("ibv_post_send", syscall.EINVAL)
	case a.closed:
		return verbs.ErrClosed
	case n > pathMTU:
		return &verbs.LimitError{What: "bytes of a UD message", Got: n, Max: pathMTU}
	}
	return nil
}

// emit sends what can be sent.
//
//go:norace
func (q *qp) emit() {
	for q.mayGo() {
		r := q.sq.at(0)
		payload, status := q.check(r)
		if q.typ == verbs.UD && r.AH.(*ah).closed {
			status = verbs.StatusLocQPOpErr
		}
		if status == verbs.StatusSuccess {
			if to := q.target(r); to != nil {
				to.take(q, r, payload)
			}
			if !q.operational() {
				return // sent to itself, and broken by it
			}
		}
		q.complete(status)
		if status != verbs.StatusSuccess {
			q.toError()
		}
	}
}

// target is the QP that a request's packets reach, nil if they are lost.
//
//go:norace
func (q *qp) target(r *sendReq) *qp {
	var to *qp
	if q.typ == verbs.UD {
		key := r.RemoteQKey
		if key>>31 != 0 {
			key = q.attr.QKey // IBTA vol. 1, 10.2.5
		}
		to = q.fab.qpAt(&r.AH.(*ah).attr, r.RemoteQPNum, verbs.UD)
		if to != nil && to.attr.QKey != key {
			return nil
		}
	} else if to = q.peer(); to != nil && !(to.names(q) && q.fits(to, r.length())) {
		return nil
	}
	if to == nil || !to.operational() || !q.fab.path(q.dev, to.dev) {
		return nil
	}
	return to
}

// take does what a request asks for, or nothing.
//
//go:norace
func (q *qp) take(from *qp, r *sendReq, payload []byte) {
	n := r.length()
	if takesRecv(r.Opcode) && q.receives().len() == 0 {
		return
	}
	switch r.Opcode {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm:
		if !q.permits(r.Opcode) || n > 0 && q.pd.remote(r.RKey, r.RemoteAddr, n, verbs.AccessRemoteWrite) == nil {
			return
		}
		q.serve(&r.SendWR, n, payload, nil)
		if r.Opcode == verbs.OpRDMAWriteWithImm {
			q.receiveImm(&r.SendWR, uint32(n))
		}
	default:
		room := length(q.receives().at(0).SGL)
		switch {
		case q.typ == verbs.UC && n <= room:
			q.receive(&r.SendWR, payload)
		case q.typ == verbs.UD && n+verbs.GRHSize <= room:
			q.receiveDatagram(from, &r.SendWR, payload)
		}
	}
}

// receiveDatagram puts a UD message into the oldest receive request.
//
//go:norace
func (q *qp) receiveDatagram(from *qp, wr *verbs.SendWR, payload []byte) {
	sgl := q.receives().at(0).SGL
	a := &wr.AH.(*ah).attr
	wc := verbs.Completion{
		Opcode: verbs.WCRecv, ByteLen: uint32(verbs.GRHSize + len(payload)), SrcQPNum: from.num, SLID: from.dev.lid, SL: a.SL,
	}
	if wr.Opcode == verbs.OpSendWithImm {
		wc.Flags, wc.Imm = verbs.WCWithImm, wr.Imm
	}
	placed := true
	if a.Global {
		wc.Flags |= verbs.WCGRH
		header := from.dev.header(a, wr.Opcode, len(payload))
		placed = q.pd.scatter(sgl, 0, header[:])
	}
	if !placed || !q.pd.scatter(sgl, verbs.GRHSize, payload) {
		q.completeRecv(verbs.Completion{Status: verbs.StatusLocProtErr}, 0)
		q.fatal(verbs.EventQPFatal)
		return
	}
	q.completeRecv(wc, wr.Flags)
}

// What precedes and follows the payload in a packet of UD (IBTA vol. 1, 5.2, 9.2 and 9.3).
const (
	bthSize    = 12
	dethSize   = 8
	immSize    = 4
	icrcSize   = 4
	udpSize    = 8
	ipv4Size   = 20
	nextIBA    = 0x1b // a base transport header follows
	nextUDP    = 17
	ipVersion6 = 6
)

// header is the global route header (IBTA vol. 1, 8.3) of a packet. On RoCE it is the IPv6 header, or zeros and the IPv4 header
// (IBTA annex A17).
func (d *Device) header(a *verbs.AHAttr, op verbs.Opcode, n int) (h [verbs.GRHSize]byte) {
	n = bthSize + dethSize + (n+3)&^3 + icrcSize
	if op == verbs.OpSendWithImm {
		n += immSize
	}
	next := byte(nextIBA)
	if d.cfg.RoCE {
		n += udpSize
		next = nextUDP
	}
	from := d.gids[a.GIDIndex]
	to4, from4 := netip.AddrFrom16(a.GID).Unmap(), netip.AddrFrom16(from).Unmap()
	if d.cfg.RoCE && to4.Is4() && from4.Is4() {
		ip := h[verbs.GRHSize-ipv4Size:]
		ip[0], ip[1] = 0x45, a.TrafficClass
		binary.BigEndian.PutUint16(ip[2:], uint16(ipv4Size+n))
		ip[8], ip[9] = a.HopLimit, next
		copy(ip[12:], from[12:])
		copy(ip[16:], a.GID[12:])
		binary.BigEndian.PutUint16(ip[10:], checksum(ip))
		return h
	}
	binary.BigEndian.PutUint32(h[0:], ipVersion6<<28|uint32(a.TrafficClass)<<20|a.FlowLabel)
	binary.BigEndian.PutUint16(h[4:], uint16(n))
	h[6], h[7] = next, a.HopLimit
	copy(h[8:], from[:])
	copy(h[24:], a.GID[:])
	return h
}

// checksum is that of an IPv4 header whose own is 0 (RFC 1071).
func checksum(ip []byte) uint16 {
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
