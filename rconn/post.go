package rconn

import (
	"time"

	"github.com/rconn/rdma/ring"
	"github.com/rconn/rdma/verbs"
)

// What the stream has becomes work requests under the lock, in order. They are posted without it, by one goroutine at a time, which goes on
// with those that others have added: some devices, such as Soft-RoCE, do all their work in the call that posts, and small writes gather
// meanwhile.

// batchSends is how many requests of the stream are posted with one call.
const batchSends = 16

// callPosts is how many batches a call posts that others may have added to, before a goroutine goes on.
const callPosts = 2

// batch is work requests to be posted with one call: those of the stream, and a probe.
type batch struct {
	n    int
	wrs  [batchSends + 1]verbs.SendWR
	sges [batchSends]verbs.SGE
}

// post has the device take what the stream has for it. It unlocks c.mu for a while.
func (c *Conn) post() {
	c.collect()
	c.push()
}

// collect makes work requests of what the stream has, and reacts to the peer's end.
func (c *Conn) collect() {
	if c.err != nil || c.gated || c.released {
		return
	}
	if c.stream.PeerDisconnected() {
		if !c.hungUp && c.iwarp() {
			// The peer waits for this: on iWARP its completions told it nothing. What was received stays readable.
			c.hungUp = true
			_ = c.ep.id.Disconnect()
		}
		return
	}
	if err := c.ep.collect(); err != nil {
		c.broke(err)
	}
	if k := &c.keepalive; k.owed && c.ep.probe() {
		k.owed = false
		c.stats.Probes++
	}
}

// push posts what was collected, unless somebody does already. It unlocks c.mu for a while.
func (c *Conn) push() {
	if c.posting || !c.collected() {
		return
	}
	c.posting = true
	for n := 0; c.collected(); n++ {
		if n == callPosts {
			go c.pusher()
			return
		}
		c.pushBatch()
	}
	c.endPosting()
}

// pushRest goes on for push.
func (c *Conn) pushRest() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.collected() {
		c.pushBatch()
		c.unlock(&c.postTurns, time.Now())
		c.mu.Lock()
	}
	c.endPosting()
}

// collected tells whether there is something to be posted, and sense in it.
func (c *Conn) collected() bool {
	return c.ep.out.n > 0 && c.err == nil && !c.released && !c.stream.PeerDisconnected()
}

// pushBatch posts what was collected, and collects again.
func (c *Conn) pushBatch() {
	b := c.ep.swap()
	if b.n >= batchSends {
		c.collect() // somebody may wait for room in the batch
		c.turn()
	}
	c.mu.Unlock()
	_, err := c.ep.qp.PostSend(b.wrs[:b.n])
	c.mu.Lock()
	if err != nil {
		c.broke(err)
	}
	c.collect()
	c.turn()
}

func (c *Conn) endPosting() {
	c.posting = false
	c.quiet.Broadcast()
}

// broke ends the connection because the device refused a request.
func (c *Conn) broke(err error) {
	c.reapAll() // what had arrived before counts, it may be the peer's orderly end
	c.fail(err)
}

// repostBatch is how many receives are posted again together: that costs what posting one does.
const repostBatch = ring.ReceiveReserve / 2

// collect posts the receives that are owed, and takes from the stream what it has, as far as there is room for.
func (e *endpoint) collect() error {
	if n := e.stream.Owed(); n >= repostBatch || n > 0 && e.stream.Granting() {
		e.repost = e.repost[:0]
		for _, slot := range e.freed {
			e.repost = append(e.repost, e.recvs[slot])
		}
		e.freed = e.freed[:0]
		if _, err := e.qp.PostRecv(e.repost); err != nil {
			return err
		}
		e.stream.Reposted(n)
	}
	var op ring.Op
	for e.out.n < batchSends && e.stream.Next(&op) {
		e.add(&op)
	}
	return nil
}

// swap returns what was collected, and makes room for more.
func (e *endpoint) swap() *batch {
	b := e.out
	e.out, e.spare = e.spare, b
	e.out.n = 0
	return b
}

var opcodes = [...]verbs.Opcode{
	ring.WriteImm: verbs.OpRDMAWriteWithImm, ring.Write: verbs.OpRDMAWrite, ring.Send: verbs.OpSend,
}

// add appends an operation's work request, and returns it.
func (e *endpoint) add(op *ring.Op) *verbs.SendWR {
	b := e.out
	wr := &b.wrs[b.n]
	*wr = verbs.SendWR{
		ID: op.Seq, Opcode: opcodes[op.Kind], RemoteAddr: op.Addr, RKey: op.RKey, Imm: uint32(op.Msg),
	}
	if op.Signal || e.signalAll {
		wr.Flags = verbs.Signaled
	}
	mem := e.send
	if op.Grown {
		mem = e.bigSend
	}
	switch {
	case op.Len == 0:
	case op.Len <= e.inline:
		wr.Inline = mem.Bytes()[op.Off:][:op.Len]
	default:
		b.sges[b.n] = verbs.SGE{Addr: mem.Addr() + uint64(op.Off), Length: uint32(op.Len), LKey: mem.LKey()}
		wr.SGL = b.sges[b.n : b.n+1]
	}
	b.n++
	return wr
}

// probe adds a request of no bytes that the peer's device answers. False: there is no room for it, or it would come between the two parts
// of a message.
func (e *endpoint) probe() bool {
	var op ring.Op
	if e.out.n == len(e.out.wrs) || !e.stream.Probe(&op) {
		return false
	}
	if wr := e.add(&op); !e.acked {
		wr.Opcode = verbs.OpRDMARead
	}
	return true
}
