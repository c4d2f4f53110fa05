package verbstest

import "github.com/rconn/rdma/verbs"

func (p *pd) RegMR([]byte, verbs.Access) (verbs.MR, error) {
	return nil, p.lacks("registering the caller's memory")
}

func (p *pd) CreateQP(o verbs.QPOptions) (verbs.QP, error) {
	return nil, p.lacks("a " + o.Type.String() + " queue pair connected by hand")
}

func (p *pd) CreateSRQ(verbs.SRQOptions) (verbs.SRQ, error) {
	return nil, p.lacks("shared receive queues")
}

func (p *pd) CreateAH(verbs.AHAttr) (verbs.AH, error) { return nil, p.lacks("address handles") }

func (p *pd) lacks(what string) error {
	return &verbs.UnsupportedError{Device: p.dev.Name(), What: what}
}

// GIDType is for ports whose entries are of one type.
func (d *Device) GIDType(port, index int) (verbs.GIDType, error) {
	_, err := d.GID(port, index)
	return verbs.GIDTypeIB, err
}
