package rconn

import (
	"testing"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// Where a completion frees no memory but its own request's, every request asks for one; elsewhere those that the ring wants.
//
// fault: DATA-11
func TestSignaledRequests(t *testing.T) {
	for _, all := range []bool{false, true} {
		e := &endpoint{signalAll: all}
		for i, want := range []bool{false, true} {
			e.request(i, &ring.Op{Kind: ring.Write, Signal: want})
			require.Equal(t, all || want, e.sends[i].Flags&verbs.Signaled != 0, "all %v, wanted %v", all, want)
		}
	}
}
