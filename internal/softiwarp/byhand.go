package softiwarp

import "github.com/rconn/rdma/verbs"

// What belongs to QPs that are connected by hand, and to datagrams: iWARP has neither, a stream begins with MPA's request and reply.

func (p *pd) CreateQP(o verbs.QPOptions) (verbs.QP, error) {
	return nil, p.dev.lacks(o.Type.String() + " queue pairs that are connected by hand")
}

func (p *pd) CreateAH(verbs.AHAttr) (verbs.AH, error) { return nil, p.dev.lacks("address handles") }

func (d *device) lacks(what string) error {
	return &verbs.UnsupportedError{Device: d.Name(), What: what}
}
