package rconn

import (
	"errors"

	"github.com/rconn/rdma/verbs"
)

// memory is what a connection registers, in a protection domain of its own.
type memory struct {
	pd   verbs.PD
	send verbs.MR // send ring and slots, read by the device only
	recv verbs.MR // table, receive ring, message slots: the peer writes here
}

// register maps and registers memory of those sizes. When it fails, free has to be called all the same.
func (m *memory) register(dev verbs.Device, send, recv int) (err error) {
	if m.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if m.send, err = m.pd.AllocMR(send, verbs.AccessLocalWrite); err != nil {
		return err
	}
	m.recv, err = m.pd.AllocMR(recv, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	return err
}

// is tells whether the memory is what register would make.
func (m *memory) is(dev verbs.Device, send, recv int) bool {
	return m.pd.Device() == dev && len(m.send.Bytes()) == send && len(m.recv.Bytes()) == recv
}

func (m *memory) size() int { return len(m.send.Bytes()) + len(m.recv.Bytes()) }

// scrub leaves nothing of what was sent and received.
func (m *memory) scrub() {
	clear(m.send.Bytes())
	clear(m.recv.Bytes())
}

func (m *memory) free() error {
	var errs []error
	for _, mr := range []verbs.MR{m.recv, m.send} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if m.pd != nil {
		errs = append(errs, m.pd.Close())
	}
	return errors.Join(errs...)
}
