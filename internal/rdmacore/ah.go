//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// ah is an address handle.
type ah struct {
	pd   *pd
	c    *C.struct_ibv_ah
	mtu  int  // of the port, which bounds what a request can carry
	refs refs // requests that are being posted
}

// CreateAH may take a while: the library finds the hardware address of the peer.
func (p *pd) CreateAH(a verbs.AHAttr) (verbs.AH, error) {
	d := p.dev
	if d.attr.MaxAH == 0 {
		return nil, &verbs.UnsupportedError{Device: d.name, What: "address handles"}
	}
	if err := p.refs.acquire(); err != nil {
		return nil, err
	}
	h, err := p.newAH(&a)
	if err != nil {
		p.refs.release()
		return nil, d.orRemoved(err)
	}
	return h, nil
}

func (p *pd) newAH(a *verbs.AHAttr) (*ah, error) {
	port, err := p.dev.checkAH(a)
	if err != nil {
		return nil, err
	}
	h := &ah{pd: p, mtu: port.MTU}
	attr := ahToC(a)
	err = p.dev.p.calls.do(func() error { return sysErr("ibv_create_ah", int(C.rc_create_ah(p.c, &attr, &h.c))) })
	return h, err
}

func (h *ah) Close() error {
	return h.refs.close(func() error {
		err := h.pd.dev.p.calls.do(func() error { return sysErr("ibv_destroy_ah", int(C.rc_destroy_ah(h.c))) })
		if err == nil {
			h.pd.refs.release()
		}
		return err
	})
}

// checkAH refuses a way that cannot be, and returns the port that it begins at.
func (d *device) checkAH(a *verbs.AHAttr) (verbs.PortAttr, error) {
	if a.Port < 1 || a.Port > d.attr.Ports {
		return verbs.PortAttr{}, errNoPort(a.Port)
	}
	port, err := d.port(a.Port)
	if err != nil {
		return port, err
	}
	if err := checkAH(&port, a); err != nil {
		return port, err
	}
	if a.Global {
		gid, err := d.GID(a.Port, a.GIDIndex)
		if err != nil {
			return port, err
		}
		if gid.IsZero() {
			return port, fmt.Errorf("%w: entry %d of the GID table of port %d is empty", syscall.EINVAL, a.GIDIndex, a.Port)
		}
	}
	return port, nil
}

// hold keeps the AH of a request of a UD QP from being destroyed while the request is posted.
func (q *qp) hold(wr *verbs.SendWR) (*ah, error) {
	h, ok := wr.AH.(*ah)
	switch {
	case wr.AH == nil:
		return nil, errNoAH
	case !ok || h.pd.dev != q.dev:
		return nil, verbs.ErrForeign
	case h.pd != q.pd:
		return nil, errOtherPD
	}
	if err := checkDatagram(wr, h.mtu); err != nil {
		return nil, err
	}
	if err := h.refs.acquire(); err != nil {
		return nil, err
	}
	q.send.held = append(q.send.held, h)
	return h, nil
}

// letGo ends what hold began.
func (q *qp) letGo() {
	for _, h := range q.send.held {
		h.refs.release()
	}
	q.send.held = q.send.held[:0]
}

func ahToC(a *verbs.AHAttr) C.struct_rc_ah_attr {
	c := C.struct_rc_ah_attr{
		port:          C.uint8_t(a.Port),
		lid:           C.uint16_t(a.LID),
		sl:            C.uint8_t(a.SL),
		src_path_bits: C.uint8_t(a.SrcPathBits),
		static_rate:   C.uint8_t(a.StaticRate),
	}
	if a.Global {
		c.global = 1
		for n, b := range a.GID {
			c.gid[n] = C.uint8_t(b)
		}
		c.gid_index = C.uint8_t(a.GIDIndex)
		c.flow_label = C.uint32_t(a.FlowLabel)
		c.hop_limit = C.uint8_t(a.HopLimit)
		c.traffic_class = C.uint8_t(a.TrafficClass)
	}
	return c
}

func ahAttr(c *C.struct_rc_ah_attr) verbs.AHAttr {
	a := verbs.AHAttr{
		Port:         int(c.port),
		LID:          uint16(c.lid),
		SL:           uint8(c.sl),
		SrcPathBits:  uint8(c.src_path_bits),
		StaticRate:   uint8(c.static_rate),
		Global:       c.global != 0,
		GIDIndex:     int(c.gid_index),
		FlowLabel:    uint32(c.flow_label),
		HopLimit:     uint8(c.hop_limit),
		TrafficClass: uint8(c.traffic_class),
	}
	for n, b := range c.gid {
		a.GID[n] = byte(b)
	}
	return a
}
