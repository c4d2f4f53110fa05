package ring

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// end is one side of a simulated connection: a stream, its memory, and a device that carries out operations in order.
type end struct {
	*Stream
	name     string
	peer     *end
	cfg      Config
	bigSend  []byte // grown rings, nil before
	bigRecv  []byte
	posted   []Op // the wire towards the peer
	arrived  []arrival
	acks     []uint64 // signaled operations carried out, completion not yet seen
	receives int      // posted receives not used up
	total    int      // receives in all
	late     int      // receives promised and not yet posted: a fault planted by a test

	toWrite, written, read int // stream bytes
}

type arrival struct {
	m       Message
	byteLen int
}

const (
	simTable = 0x1000_0000
	simRing  = 0x2000_0000
	simBig   = 0x3000_0000
)

func newEnd(t testing.TB, name string, cfg Config, sendRing, recvRing int) *end {
	cfg.Send = make([]byte, SendSize(sendRing, cfg.SendQueue))
	cfg.Recv = make([]byte, recvRing)
	cfg.Table = make([]byte, TableSize)
	cfg.RecvAddr, cfg.RecvRKey, cfg.TableAddr, cfg.TableRKey = simRing, 7, simTable, 8
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &end{Stream: s, name: name, cfg: cfg, receives: cfg.Receives(), total: cfg.Receives()}
}

// connect joins two ends through the encoded handshakes.
func connect(t testing.TB, a, b *end) {
	a.peer, b.peer = b, a
	for _, e := range []*end{a, b} {
		h, err := ParseHandshake(e.peer.Handshake().Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		e.Start(h)
	}
}

// pattern is the stream byte at a position: any slip shows.
func pattern(name string, pos int) byte { return byte(pos*31+pos>>8) ^ name[0] }

// actions are the things that may happen next at this end; each returns whether it changed anything.
var actions = []func(*end, *rand.Rand) (bool, error){
	(*end).doWrite, (*end).doRead, (*end).doPost, (*end).doRepost, (*end).doDeliver, (*end).doAck, (*end).doReceive,
	(*end).doBatch, (*end).doGrow,
}

// doBatch changes nothing by itself.
func (e *end) doBatch(r *rand.Rand) (bool, error) {
	e.Batch(max(0, r.IntN(2*e.size())-e.size()))
	return false, nil
}

func (e *end) doWrite(r *rand.Rand) (bool, error) { return e.writeSome(1 + r.IntN(e.size())) }

func (e *end) writeSome(most int) (bool, error) {
	span := e.WriteSpan()
	n := min(len(span), e.toWrite-e.written, most)
	if n <= 0 {
		return false, nil
	}
	for i := range n {
		span[i] = pattern(e.name, e.written+i)
	}
	e.Commit(n)
	e.written += n
	if e.written == e.toWrite {
		e.Shutdown()
	}
	return true, nil
}

func (e *end) size() int { return len(e.cfg.Recv) + 1 }

func (e *end) doRead(r *rand.Rand) (bool, error) { return e.readSome(1 + r.IntN(e.size())) }

func (e *end) readSome(most int) (bool, error) {
	span := e.ReadSpan()
	n := min(len(span), most)
	for i := range n {
		if want := pattern(e.peer.name, e.read+i); span[i] != want {
			return false, fmt.Errorf("byte %d is %#x, want %#x", e.read+i, span[i], want)
		}
	}
	clear(span[:n]) // so that bytes announced and not written would show
	e.Consume(n)
	e.read += n
	return n > 0, nil
}

func (e *end) doPost(*rand.Rand) (bool, error) {
	var op Op
	if !e.Next(&op) {
		return false, nil
	}
	if op.Off < 0 || op.Off+op.Len > len(e.sendMemory(&op)) {
		return false, fmt.Errorf("%v outside of the send memory", op)
	}
	e.posted = append(e.posted, op)
	if len(e.posted)+len(e.acks) > e.cfg.SendQueue {
		return false, fmt.Errorf("send queue overrun")
	}
	return true, nil
}

func (e *end) doRepost(r *rand.Rand) (bool, error) {
	if e.Owed() == 0 {
		return false, nil
	}
	n := 1 + r.IntN(e.Owed())
	e.receives += n
	e.Reposted(n)
	return true, nil
}

// sendMemory is where the payload of an operation lies.
func (e *end) sendMemory(op *Op) []byte {
	if op.Grown {
		return e.bigSend
	}
	return e.cfg.Send
}

// doGrow replaces the rings by larger ones, at most once each.
func (e *end) doGrow(r *rand.Rand) (bool, error) {
	switch r.IntN(100) { // seldom, so that streams have some way behind them
	case 0:
		return e.growSend(1 + r.IntN(200))
	case 1:
		return e.growRecv(2 * (1 + r.IntN(100)))
	}
	return false, nil
}

func (e *end) growSend(size int) (bool, error) {
	if e.bigSend != nil {
		return false, nil
	}
	e.bigSend = make([]byte, size)
	e.GrowSend(e.bigSend)
	return true, nil
}

func (e *end) growRecv(size int) (bool, error) {
	if e.bigRecv != nil {
		return false, nil
	}
	e.bigRecv = make([]byte, size)
	e.GrowRecv(e.bigRecv, simBig, 9)
	return true, nil
}

// doDeliver carries out the oldest operation: the payload is read from the send memory only now.
func (e *end) doDeliver(*rand.Rand) (bool, error) {
	if len(e.posted) == 0 {
		return false, nil
	}
	op, p := e.posted[0], e.peer
	if op.Kind != Write {
		if p.receives == 0 {
			if e.cfg.Variant == Separate {
				return false, fmt.Errorf("%v finds no receive", op)
			}
			return false, nil // receiver not ready: tried again
		}
		p.receives--
	}
	e.posted = e.posted[1:]
	payload := e.sendMemory(&op)[op.Off:][:op.Len]
	switch op.Kind {
	case WriteImm:
		if err := p.place(op, payload); err != nil {
			return false, err
		}
		p.arrived = append(p.arrived, arrival{op.Msg, op.Len})
	case Write:
		if err := p.place(op, payload); err != nil {
			return false, err
		}
	case Send:
		p.arrived = append(p.arrived, arrival{Message(binary.LittleEndian.Uint32(payload)), op.Len})
	}
	if op.Signal {
		e.acks = append(e.acks, op.Seq)
	}
	return true, nil
}

// place is an RDMA write into this end's memory. Ring bytes that were not consumed must not be overwritten.
func (e *end) place(op Op, payload []byte) error {
	switch op.RKey {
	case e.cfg.TableRKey:
		if off := op.Addr - simTable; off+uint64(len(payload)) > TableSize {
			return fmt.Errorf("%v outside of the table", op)
		}
		at := e.cfg.Table[op.Addr-simTable:]
		if len(payload) > 0 && entry(at, binary.LittleEndian).Len != 0 {
			return fmt.Errorf("%v overwrites a table entry not yet taken", op)
		}
		copy(at, payload)
	case e.cfg.RecvRKey:
		return e.fill(op, e.cfg.Recv, simRing, payload)
	case 9:
		return e.fill(op, e.bigRecv, simBig, payload)
	default:
		return fmt.Errorf("%v with unknown rkey %d", op, op.RKey)
	}
	return nil
}

// fill writes a payload to a receive ring.
func (e *end) fill(op Op, ring []byte, addr uint64, payload []byte) error {
	off := op.Addr - addr
	if off+uint64(len(payload)) > uint64(len(ring)) {
		return fmt.Errorf("%v outside of the ring", op)
	}
	for i, b := range payload {
		at := int(off) + i
		if ring[at] != 0 && e.unread(ring, at) {
			return fmt.Errorf("%v overwrites unread bytes", op)
		}
		ring[at] = b
	}
	return nil
}

// unread tells whether a ring offset holds a byte that was announced and not consumed.
func (e *end) unread(ring []byte, at int) bool {
	for pos := e.recv.consumed; pos < e.recv.received; pos++ {
		if a, _ := e.recv.ring.of(pos); a.at(pos) == at && &a.buf[0] == &ring[0] {
			return true
		}
	}
	return false
}

func (e *end) doAck(*rand.Rand) (bool, error) {
	if len(e.acks) == 0 {
		return false, nil
	}
	if !e.Completed(e.acks[0]) {
		return false, fmt.Errorf("completion of operation %d, which is not in flight", e.acks[0])
	}
	e.acks = e.acks[1:]
	return true, nil
}

func (e *end) doReceive(*rand.Rand) (bool, error) {
	if len(e.arrived) == 0 {
		return false, nil
	}
	a := e.arrived[0]
	e.arrived = e.arrived[1:]
	return true, e.Received(a.m, a.byteLen)
}

func (e *end) check() error {
	r, p := &e.recv, &e.peer.recv
	switch {
	case r.consumed > r.received || r.received > r.offered || r.offered > r.consumed+uint64(len(r.ring.buf)+len(r.ring.old.buf)):
		return fmt.Errorf("positions: consumed %d, received %d, offered %d", r.consumed, r.received, r.offered)
	case r.granted-r.seq > r.credits:
		return fmt.Errorf("%d credits granted of %d", r.granted-r.seq, r.credits)
	case e.send.posted > p.offered:
		return fmt.Errorf("positions: %d bytes written of %d granted", e.send.posted, p.offered)
	case p.granted-e.send.seq > p.credits:
		return fmt.Errorf("message %d sent, the limit was %d", e.send.seq, p.granted)
	case e.recv.owed+len(e.arrived)+e.receives+e.late != e.total:
		return fmt.Errorf("receives: %d owed, %d used up, %d posted of %d", r.owed, len(e.arrived), e.receives, e.total)
	}
	return nil
}

func (e *end) finished() bool {
	return e.written == e.toWrite && e.read == e.peer.toWrite && e.EOF() && e.Drained()
}

// runSim drives both ends by random steps until all bytes and both shutdowns have arrived, and returns the number of steps.
func runSim(t *testing.T, r *rand.Rand, a, b *end) int {
	ends := []*end{a, b}
	step := 0
	for idle := 0; !a.finished() || !b.finished(); step++ {
		e := ends[r.IntN(2)]
		moved, err := actions[r.IntN(len(actions))](e, r)
		if err == nil {
			err = e.check()
		}
		if err != nil {
			t.Fatalf("step %d, end %s: %v", step, e.name, err)
		}
		idle++
		if moved {
			idle = 0
		}
		if idle > 2000 {
			t.Fatalf("step %d: nobody can move\n%+v\n%+v", step, a.Stream, b.Stream)
		}
	}
	return step
}

func TestSimulation(t *testing.T) {
	steps, r := 0, rand.New(rand.NewPCG(1, 2))
	for round := 0; steps < 1_000_000; round++ {
		variant := Variant(round % 2)
		end := func(name string) *end {
			cfg := Config{Variant: variant, Credits: 1 + r.IntN(40), SendQueue: MinSendQueue + r.IntN(20), MaxWrite: r.IntN(50)}
			e := newEnd(t, name, cfg, 1+r.IntN(100), 2*(1+r.IntN(60)))
			e.toWrite = 1 + r.IntN(3000)
			return e
		}
		a, b := end("a"), end("b")
		connect(t, a, b)
		steps += runSim(t, r, a, b)
		if t.Failed() {
			t.Fatalf("round %d: %+v %+v", round, a.cfg, b.cfg)
		}
	}
	t.Logf("%d steps", steps)
}
