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

// CreateQP makes the id's QP. librdmacm moves it through its states when the connection is made.
func (i *id) CreateQP(p verbs.PD, o verbs.QPOptions) (verbs.QP, error) {
	parts, err := i.dev.own("rdma_create_qp", p, &o)
	if err != nil {
		return nil, err
	}
	if o.Type != verbs.RC {
		return nil, &verbs.UnsupportedError{Device: i.dev.name, What: fmt.Sprintf("a %v queue pair made by a cm.ID", o.Type)}
	}
	if err := checkQPOptions(&i.dev.attr, &o); err != nil {
		return nil, err
	}
	i.op.Lock()
	defer i.op.Unlock()
	if err := i.mayCreateQP(); err != nil {
		return nil, err
	}
	release, err := parts.acquire(&i.refs)
	if err != nil {
		return nil, err
	}
	q, err := i.dev.newQP(i, parts, release, &o)
	if err != nil {
		release()
		if i.m.now() == stateRequested {
			err = acceptErr(err)
		}
		return nil, i.dev.orRemoved(err)
	}
	q.recv.ready = true
	i.setQP(q)
	return q, nil
}

func (i *id) cmID() *C.struct_rdma_cm_id { return i.c }

// modify writes one attribute after the other: the kernel takes no other with a move to the error state.
func (i *id) modify(q *qp, attr *verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := checkCMAttrs(attr, mask); err != nil {
		return err
	}
	if mask&verbs.AttrMinRNRTimer != 0 && i.dev.attr.Caps.RNR {
		if err := q.write(attr, verbs.AttrMinRNRTimer); err != nil {
			return err
		}
	}
	if mask&verbs.AttrState != 0 {
		return q.write(attr, verbs.AttrState)
	}
	return nil
}

func (i *id) mayBegin(q *qp) (sends, reads bool, err error) {
	if i.dev.attr.Transport == verbs.TransportIWARP { // siw tells no state
		return i.m.begun(), i.depth.Load() > 0, nil
	}
	return q.state()
}

// destroy waits for a connect that still blocks in the kernel, which uses the QP.
func (i *id) destroy(f func() error) error {
	i.op.Lock()
	defer i.op.Unlock()
	i.p.cm.detachQP(i)
	if err := f(); err != nil {
		return err
	}
	i.setQP(nil)
	return nil
}
