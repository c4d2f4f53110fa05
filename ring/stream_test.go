package ring

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// started is an end whose peer is a C peer with its defaults; what the peer sends is the test's.
func started(t *testing.T, variant Variant) *end {
	return startedWith(t, Config{Variant: variant, Credits: 16, SendQueue: 32})
}

func startedWith(t *testing.T, cfg Config) *end {
	e := newEnd(t, "x", cfg, 64, 32)
	h, err := ParseHandshake(unhex(t, cHandshake))
	require.NoError(t, err)
	e.Start(h)
	return e
}

// drain takes all operations there are.
func (e *end) drain() (ops []Op) {
	for op := (Op{}); e.Next(&op); op = (Op{}) {
		ops = append(ops, op)
	}
	return ops
}

func (e *end) writeAll(t *testing.T, b string) {
	require.Equal(t, len(b), copy(e.WriteSpan(), b))
	e.Commit(len(b))
}

// receiveAndRead has a message of n bytes come, and reads them.
func (e *end) receiveAndRead(t *testing.T, n int) {
	require.NoError(t, e.Received(Message(n), map[Variant]int{Immediate: n, Separate: MessageSize}[e.cfg.Variant]))
	e.Consume(n)
	e.Reposted(1)
}

func TestFirstOperations(t *testing.T) {
	e := started(t, Immediate)
	e.writeAll(t, "hello")
	ops := e.drain()
	require.Len(t, ops, 2)

	// The second half of the ring is offered at once, in entry 1.
	require.Equal(t, Op{
		Kind: WriteImm, Off: 64, Len: 16, Addr: 0x625000003010, RKey: 0x1001, Msg: 0x80000010,
	}, ops[0])
	require.Equal(t, Segment{Addr: simRing + 16, RKey: 7, Len: 16}, entry(e.cfg.Send[64:], binary.LittleEndian))

	require.Equal(t, Op{
		Kind: WriteImm, Seq: 1, Len: 5, Addr: 0x7f111a8c1000, RKey: 0x1002, Msg: 5,
	}, ops[1])

	e.Shutdown()
	ops = e.drain()
	require.Len(t, ops, 1)
	require.Equal(t, Message(0xE0000002), ops[0].Msg)
	require.True(t, ops[0].Signal)
	require.False(t, e.Drained())
	require.True(t, e.Completed(2))
	require.True(t, e.Drained())
	require.False(t, e.Completed(3))
}

func TestOperationsOnIWARP(t *testing.T) {
	e := started(t, Separate)
	e.writeAll(t, "x")
	ops := e.drain()
	require.Len(t, ops, 4)
	require.Equal(t, []OpKind{Write, Send, Write, Send}, []OpKind{ops[0].Kind, ops[1].Kind, ops[2].Kind, ops[3].Kind})
	require.Equal(t, unhex(t, "10000080"), e.cfg.Send[ops[1].Off:][:ops[1].Len])
	require.Equal(t, unhex(t, "01000000"), e.cfg.Send[ops[3].Off:][:ops[3].Len])
}

// A peer whose machine is big-endian reads its table that way.
func TestEntryInPeersByteOrder(t *testing.T) {
	e := newEnd(t, "x", Config{Credits: 16, SendQueue: 32}, 64, 32)
	b := unhex(t, cHandshake)
	b[1] |= flagBigEndian
	h, err := ParseHandshake(b)
	require.NoError(t, err)
	e.Start(h)
	ops := e.drain()
	require.Equal(t, Segment{Addr: simRing + 16, RKey: 7, Len: 16}, entry(e.cfg.Send[ops[0].Off:], binary.BigEndian))
}

// Nothing is granted before the receives are posted again.
func TestGrantWaitsForReceives(t *testing.T) {
	e := started(t, Immediate)
	e.drain()
	for range 8 {
		require.NoError(t, e.Received(1, 1))
	}
	require.Empty(t, e.drain())
	e.Reposted(7)
	require.Empty(t, e.drain())
	e.Reposted(1)
	ops := e.drain()
	require.Len(t, ops, 1)
	require.Equal(t, Message(0x80000018), ops[0].Msg, "limit 8+16")
	require.Zero(t, ops[0].Len)
	require.NotZero(t, ops[0].RKey, "an empty write names a good target too")
}

// As many grants may be under way in either variant, though one takes two operations on iWARP.
func TestGrantsUnderWay(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			e := started(t, variant)
			ops := e.drain() // the second half of the ring
			for !e.Granting() {
				e.receiveAndRead(t, 16)
				ops = append(ops, e.drain()...)
			}
			require.Len(t, ops, controlReserve*e.opsPerMessage())
			signaled := slices.IndexFunc(ops, func(op Op) bool { return op.Signal })
			require.Equal(t, 2*e.opsPerMessage()-1, signaled, "the second of four is asked about")
			require.True(t, e.Completed(ops[signaled].Seq))
			require.NotEmpty(t, e.drain())
		})
	}
}

// A peer that fills each segment as soon as it has it keeps grants under way, as many as there may be: data gets its turn all the same, in the
// smallest send queue too.
//
// fault: FLOW-12
func TestDataBetweenGrants(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			e := startedWith(t, Config{Variant: variant, Credits: 16, SendQueue: MinSendQueue})
			var signaled []uint64
			step := func() {
				for _, op := range e.drain() {
					if op.Signal {
						signaled = append(signaled, op.Seq)
					}
				}
				if e.recv.offered > e.recv.received {
					e.receiveAndRead(t, 16)
				} else {
					require.True(t, e.Completed(signaled[0]))
					signaled = signaled[1:]
				}
			}
			for e.send.queue.control < controlReserve {
				step()
			}
			e.writeAll(t, "hello")
			for range 100 {
				step()
			}
			require.Zero(t, e.Unposted())
		})
	}
}

// A sender leaves a reserve of credits, at most half of them.
func TestReserve(t *testing.T) {
	for credits, want := range map[uint16]int{384: 376, 16: 8, 4: 2, 2: 1, 1: 1} {
		e := newEnd(t, "x", Config{Credits: 16, SendQueue: 1000}, 1000, 32)
		h, err := ParseHandshake(unhex(t, cHandshake))
		require.NoError(t, err)
		h.Credits = credits
		e.Start(h)
		e.drain()
		sent := 0
		for range 500 {
			e.writeAll(t, "x")
			sent += len(e.drain())
		}
		require.Equal(t, want, sent, "of %d credits", credits)
	}
}

func TestWithdraw(t *testing.T) {
	e := started(t, Immediate)
	e.drain()
	e.send.nsegs = 0 // no window
	e.writeAll(t, "hello")
	require.Equal(t, 5, e.Unposted())
	require.Equal(t, 5, e.Withdraw(9))
	require.Zero(t, e.Unposted())
	require.Empty(t, e.drain())
}

// fault: MEM-3
func TestHostileMessages(t *testing.T) {
	type msg struct {
		m       Message
		byteLen int
	}
	setEntry := func(g Segment) func(*end) {
		return func(e *end) { appendEntry(e.cfg.Table[entrySize:][:0], binary.LittleEndian, g) }
	}
	good := Segment{Addr: 1 << 20, RKey: 3, Len: 100}
	limit := newMessage(kindCredit, 384)
	for name, c := range map[string]struct {
		variant Variant
		prepare func(*end)
		msgs    []msg
	}{
		"data of 0":                   {msgs: []msg{{0, 0}}},
		"data longer than segment":    {msgs: []msg{{17, 17}}},
		"data across segments":        {msgs: []msg{{15, 15}, {2, 2}}},
		"data beyond what is offered": {msgs: []msg{{16, 16}, {1, 1}, {15, 15}, {1, 1}}},
		"byte_len unlike the message": {msgs: []msg{{5, 4}}},
		"bytes never written":         {msgs: []msg{{5, 0}}},
		"huge data":                   {msgs: []msg{{0x1fffffff, 0x1fffffff}}},
		"limit goes back":             {msgs: []msg{{newMessage(kindCredit, 383), 0}}},
		"limit too far":               {msgs: []msg{{newMessage(kindCredit, 385), 0}}},
		"credit with odd payload":     {msgs: []msg{{limit, 8}}},
		"entry not written":           {msgs: []msg{{limit, 16}}},
		"entry wraps":                 {prepare: setEntry(Segment{Addr: ^uint64(0), Len: 2}), msgs: []msg{{limit, 16}}},
		"entry huge":                  {prepare: setEntry(Segment{Len: 1<<30 + 1}), msgs: []msg{{limit, 16}}},
		"third segment": {prepare: func(e *end) {
			setEntry(good)(e)
			appendEntry(e.cfg.Table[:0], binary.LittleEndian, good)
		}, msgs: []msg{{limit, 16}, {limit, 16}}},
		"iomap":                   {msgs: []msg{{0xC0000000, 24}}},
		"reserved kind":           {msgs: []msg{{0x20000001, 1}}},
		"control with payload":    {msgs: []msg{{0xE0000002, 1}}},
		"iWARP message of 3":      {variant: Separate, msgs: []msg{{1, 3}}},
		"iWARP message of 5":      {variant: Separate, msgs: []msg{{1, 5}}},
		"iWARP data past segment": {variant: Separate, msgs: []msg{{17, 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			e := started(t, c.variant)
			e.drain()
			// Offer the second segment in full, as after a drain; so that only what the case is about is wrong.
			if c.prepare != nil {
				c.prepare(e)
			}
			for _, m := range c.msgs[:len(c.msgs)-1] {
				require.NoError(t, e.Received(m.m, m.byteLen))
			}
			last := c.msgs[len(c.msgs)-1]
			require.ErrorAs(t, e.Received(last.m, last.byteLen), new(*ProtocolError))
		})
	}
}

func TestMoreMessagesThanCredits(t *testing.T) {
	e := newEnd(t, "x", Config{Credits: 4, SendQueue: 32}, 64, 32)
	connect(t, e, newEnd(t, "y", Config{Credits: 4, SendQueue: 32}, 64, 32))
	for range 4 {
		require.NoError(t, e.Received(1, 1))
	}
	require.ErrorContains(t, e.Received(1, 1), "more messages than credits")
}

func TestUnknownControlAndHighLimitBitsAreTolerated(t *testing.T) {
	e := started(t, Immediate)
	require.NoError(t, e.Received(0xE0000001, 0))
	require.NoError(t, e.Received(0xE00000ff, 0))
	require.NoError(t, e.Received(newMessage(kindCredit, 0x10000+384), 0))
}

func TestEndOfStream(t *testing.T) {
	e := started(t, Immediate)
	e.drain()
	require.NoError(t, e.Received(3, 3))
	require.NoError(t, e.Received(0xE0000002, 0))
	require.False(t, e.EOF(), "bytes before the end are read first")
	e.Consume(3)
	require.True(t, e.EOF())
	require.False(t, e.PeerDisconnected())

	require.NoError(t, e.Received(2, 2), "a C peer may send after its own shutdown")
	require.False(t, e.EOF())
	e.Consume(2)

	e.writeAll(t, "x")
	require.Len(t, e.drain(), 1, "the other direction goes on")
	require.NoError(t, e.Received(0xE0000000, 0))
	require.True(t, e.PeerDisconnected())
	require.NoError(t, e.Received(0x1fffffff, 1), "nothing counts after DISCONNECT")
	e.writeAll(t, "y")
	require.Empty(t, e.drain())
}

func TestConfigBounds(t *testing.T) {
	good := func() Config {
		return Config{
			Credits: 4, SendQueue: MinSendQueue, Send: make([]byte, SendSize(8, MinSendQueue)), Recv: make([]byte, 8),
			Table: make([]byte, TableSize),
		}
	}
	_, err := New(good())
	require.NoError(t, err)
	for name, change := range map[string]func(*Config){
		"no credits":    func(c *Config) { c.Credits = 0 },
		"credits 65535": func(c *Config) { c.Credits = 65535 },
		"send queue":    func(c *Config) { c.SendQueue = MinSendQueue - 1 },
		"no send ring":  func(c *Config) { c.Send = c.Send[:MinSendQueue*slotSize] },
		"odd ring":      func(c *Config) { c.Recv = c.Recv[:7] },
		"empty ring":    func(c *Config) { c.Recv = nil },
		"small table":   func(c *Config) { c.Table = c.Table[:16] },
		"max write":     func(c *Config) { c.MaxWrite = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			c := good()
			change(&c)
			_, err := New(c)
			require.Error(t, err)
		})
	}
}

// A Write takes back what it wrote around the moment at which the ring grew. What is written then lies in the large ring.
func TestWithdrawAroundGrowth(t *testing.T) {
	e := started(t, Immediate)
	e.drain()
	nsegs := e.send.nsegs
	e.send.nsegs = 0 // no window
	e.writeAll(t, "hello")
	_, err := e.growSend(64)
	require.NoError(t, err)
	e.writeAll(t, " world")
	require.Equal(t, 8, e.Withdraw(8))
	e.writeAll(t, "p and more")
	e.send.nsegs = nsegs
	sent := ""
	for _, op := range e.drain() {
		sent += string(e.sendMemory(&op)[op.Off:][:op.Len])
	}
	require.Equal(t, "help and more", sent)
}
