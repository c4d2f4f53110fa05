//go:build linux && cgo

package rdmacore

/*
#include "shim.h"
*/
import "C"

import (
	"fmt"

	"github.com/rconn/rdma/verbs"
)

// byHand owns the QPs that the program connects.
type byHand struct{}

// CreateQP makes a QP that librdmacm knows nothing of, on the context that is librdmacm's.
func (p *pd) CreateQP(o verbs.QPOptions) (verbs.QP, error) {
	d := p.dev
	parts, err := d.own("ibv_create_qp", p, &o)
	if err != nil {
		return nil, err
	}
	if !d.attr.Caps.QPTypes.Has(o.Type) {
		return nil, &verbs.UnsupportedError{Device: d.name, What: fmt.Sprintf("a %v queue pair connected by hand", o.Type)}
	}
	if err := checkQPOptions(&d.attr, &o); err != nil {
		return nil, err
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	release, err := parts.acquire()
	if err != nil {
		return nil, err
	}
	q, err := d.newQP(byHand{}, parts, release, &o)
	if err != nil {
		release()
		return nil, d.orRemoved(err)
	}
	return q, nil
}

func (byHand) cmID() *C.struct_rdma_cm_id { return nil }

// modify may take a while: the kernel finds the hardware address of the peer.
func (byHand) modify(q *qp, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if mask&verbs.AttrAH != 0 {
		if _, err := q.dev.checkAH(&attr.AH); err != nil {
			return err
		}
	}
	if err := q.dev.p.calls.do(func() error { return q.write(attr, mask) }); err != nil {
		return q.dev.orRemoved(err)
	}
	q.send.begun = false // ask again
	if mask&verbs.AttrState != 0 {
		q.recv.setReady(attr.State != verbs.QPReset)
	}
	return nil
}

func (byHand) mayBegin(q *qp) (sends, reads bool, err error) { return q.state() }

func (byHand) destroy(f func() error) error { return f() }
