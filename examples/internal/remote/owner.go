// Package remote is memory of another process, reached by one-sided operations alone: READ, WRITE and atomics. The owner makes
// connections and lies idle; everything else is done by those who connect.
package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// Owner is the process whose memory it is.
type Owner struct {
	ln      cm.Listener
	objects *end.Objects

	mu    sync.Mutex
	conns int
}

// operations are what Memory is made of.
var operations = []verbs.Opcode{
	verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd,
}

// NewOwner listens, and registers size zero bytes for everybody to read and write.
func NewOwner(local netip.AddrPort, size int) (*Owner, error) {
	ln, err := end.Listen(local)
	if err != nil {
		return nil, err
	}
	if err := end.Need(ln.Device(), operations...); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	const all = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	objects, err := end.NewObjects(ln.Device(), size, all, 1) // its QPs never do anything: no completions
	if err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return &Owner{ln: ln, objects: objects}, nil
}

// Addr is where the owner listens.
func (o *Owner) Addr() netip.AddrPort { return o.ln.Addr() }

// Device is the owner's device.
func (o *Owner) Device() verbs.Device { return o.ln.Device() }

// Bytes is the memory. Others change it at any time.
func (o *Owner) Bytes() []byte { return o.objects.MR.Bytes() }

// Serve makes connections until ctx ends, and then ends them. changed, if not nil, hears how many there are, one call at a time.
func (o *Owner) Serve(ctx context.Context, changed func(conns int)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := o.ln.Accept(ctx)
		if err != nil {
			return err
		}
		wg.Go(func() { o.serve(ctx, req, changed) })
	}
}

// serve lends the memory to one connection. A client that fails to connect is its own trouble.
func (o *Owner) serve(ctx context.Context, req cm.Request, changed func(int)) {
	conn, err := end.NewConn(ctx, req, o.objects.PD, verbs.QPOptions{
		SendCQ: o.objects.CQ, RecvCQ: o.objects.CQ, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1},
	})
	if err != nil {
		_ = req.Reject(nil)
		_ = req.Close()
		return
	}
	defer conn.Close()
	if req.Accept(ctx, end.Param(o.ticket())) != nil {
		return
	}
	o.count(1, changed)
	defer o.count(-1, changed)
	<-conn.Gone().Done()
}

// ticket tells a client how to reach the memory.
func (o *Owner) ticket() []byte {
	mr := o.objects.MR
	b := binary.BigEndian.AppendUint64(nil, mr.Addr())
	b = binary.BigEndian.AppendUint32(b, mr.RKey())
	return binary.BigEndian.AppendUint32(b, uint32(len(mr.Bytes())))
}

func (o *Owner) count(by int, changed func(int)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conns += by
	if changed != nil {
		changed(o.conns)
	}
}

// Close follows the end of Serve.
func (o *Owner) Close() error { return errors.Join(o.ln.Close(), o.objects.Close()) }
