package ring

// sendQueue counts the operations between post and completion. Only some need be signaled; a completion stands for all
// before it.
type sendQueue struct {
	inFlight []entryInFlight // by seq modulo its length, which is the depth of the queue
	done     uint64          // operations completed
	posted   uint64          // operations posted
	control  int             // messages in flight that are not data

	// Since the last signaled operation:
	ops, controls int
	from          uint64 // stream position behind it
	most          uint64 // stream bytes that may go without
}

type entryInFlight struct {
	pos     uint64 // stream position behind the operation
	control bool   // the last operation of a message other than data
}

func newSendQueue(depth, ringSize int) sendQueue {
	q := sendQueue{inFlight: make([]entryInFlight, depth)}
	q.grow(ringSize)
	return q
}

// grow takes the size of the send ring.
func (q *sendQueue) grow(ringSize int) { q.most = max(1, uint64(ringSize/4)) }

// room is the number of operations that fit.
func (q *sendQueue) room() int { return len(q.inFlight) - int(q.posted-q.done) }

// awaited tells that operations are under way and that a completion will say when all of them are done.
func (q *sendQueue) awaited() bool { return q.done < q.posted && q.ops == 0 }

// push counts an operation in and gives it its number. signal asks for its completion in any case.
func (q *sendQueue) push(op *Op, pos uint64, control, signal bool) {
	op.Seq = q.posted
	q.inFlight[q.posted%uint64(len(q.inFlight))] = entryInFlight{pos, control}
	q.posted++
	q.ops++
	if control {
		q.control++
		q.controls++
	}
	// A quarter of anything may wait for a completion that nobody asked for, never more: the rest is enough to go on.
	op.Signal = signal || q.ops >= len(q.inFlight)/4 || q.controls >= controlReserve/2 || pos-q.from >= q.most
	if op.Signal {
		q.ops, q.controls, q.from = 0, 0, pos
	}
}

// complete counts out everything up to operation seq and returns the stream position behind it.
func (q *sendQueue) complete(seq uint64) (pos uint64, ok bool) {
	if seq < q.done || seq >= q.posted {
		return 0, false
	}
	for ; q.done <= seq; q.done++ {
		e := q.inFlight[q.done%uint64(len(q.inFlight))]
		pos = e.pos
		if e.control {
			q.control--
		}
	}
	return pos, true
}
