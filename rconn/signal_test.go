package rconn

import (
	"testing"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
	"github.com/rconn/rdma/verbs/verbstest"
	"github.com/stretchr/testify/require"
)

// Where a completion frees no memory but its own request's, every request asks for one; elsewhere those that the ring wants.
//
// fault: DATA-11
func TestSignaledRequests(t *testing.T) {
	for _, frees := range []bool{false, true} {
		n := newNetwork(t, verbstest.Config{Device: verbstest.DeviceConfig{Attr: func(a *verbs.DeviceAttr) { a.Caps.FreesEarlier = frees }}},
			Config{KeepAlive: -1, Linger: -1})
		d, a := n.pair(t)
		transfer(t, d, a, 1<<20, 64<<10)
		d.mu.Lock()
		for _, wanted := range []bool{false, true} {
			wr := d.ep.add(&ring.Op{Kind: ring.Write, Signal: wanted})
			require.Equal(t, wanted || !frees, wr.Flags&verbs.Signaled != 0, "frees %v, wanted %v", frees, wanted)
		}
		d.ep.swap()
		d.mu.Unlock()
		closeBoth(d, a)
	}
}
