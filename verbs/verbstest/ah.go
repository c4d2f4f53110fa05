package verbstest

import (
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// ah is an address handle.
type ah struct {
	pd     *pd
	attr   verbs.AHAttr
	closed bool
}

// CreateAH implements verbs.PD.
func (p *pd) CreateAH(a verbs.AHAttr) (verbs.AH, error) {
	d := p.dev
	if err := d.call(CreateAH); err != nil {
		return nil, err
	}
	defer d.fab.mu.Unlock()
	switch {
	case p.closed:
		return nil, verbs.ErrClosed
	case d.attr.MaxAH == 0:
		return nil, &verbs.UnsupportedError{Device: d.cfg.Name, What: "address handles"}
	case !d.mayReach(&a):
		return nil, os.NewSyscallError("ibv_create_ah", syscall.EINVAL)
	case d.ahs >= d.attr.MaxAH:
		return nil, os.NewSyscallError("ibv_create_ah", syscall.ENOMEM)
	}
	d.ahs++
	p.ahs++
	d.host.count(&d.host.objects.AHs, 1)
	return &ah{pd: p, attr: a}, nil
}

// mayReach reports whether an address is one that packets of the device can have.
func (d *Device) mayReach(a *verbs.AHAttr) bool {
	ok := a.Port >= 1 && a.Port <= d.attr.Ports && a.SL <= 15
	if d.linkLayer() == verbs.LinkInfiniBand {
		ok = ok && a.LID != 0
	} else {
		ok = ok && a.Global
	}
	if a.Global {
		ok = ok && !a.GID.IsZero() && a.GIDIndex >= 0 && a.GIDIndex < len(d.gids) && a.FlowLabel < 1<<20
	}
	return ok
}

// isAt reports whether packets to an address reach the device: on InfiniBand the LID decides, too.
//
//go:norace
func (d *Device) isAt(a *verbs.AHAttr) bool {
	if d.lid != 0 && d.lid != a.LID {
		return false
	}
	for i := range d.gids {
		if d.gids[i] == a.GID {
			return true
		}
	}
	return !a.Global
}

func (a *ah) Close() error {
	d := a.pd.dev
	d.fab.mu.Lock()
	defer d.fab.mu.Unlock()
	if a.closed {
		return nil
	}
	for _, q := range d.fab.qps {
		if q.dev == d && q.addresses(a) {
			d.fab.violate("host %s: AH closed while work requests of QP %d name it", d.host.name, q.num)
		}
	}
	a.closed = true
	d.ahs--
	a.pd.ahs--
	d.host.count(&d.host.objects.AHs, -1)
	return nil
}

// addresses reports whether an outstanding request names an address handle.
func (q *qp) addresses(a *ah) bool {
	for i := range q.sq.len() {
		if q.typ == verbs.UD && q.sq.at(i).AH == a {
			return true
		}
	}
	return false
}
