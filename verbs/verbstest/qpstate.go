package verbstest

import (
	"os"
	"syscall"

	"github.com/rconn/rdma/verbs"
)

// This file is the states of a queue pair, and its attributes.

// transition is what Modify takes from one state to another, or within one, besides AttrState.
type transition struct{ from, to verbs.QPState }

// attrSets are the attributes for RC, UC and UD: those that must be there, and those that may.
type attrSets struct{ need, may [3]verbs.QPAttrMask }

const (
	attrInit = verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess
	attrPath = verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPNum | verbs.AttrRQPSN

	attrTimers = verbs.AttrAckTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry
)

// transitions are those of IBTA vol. 1, 11.2.5.2 ("Modify Queue Pair"); those to QPReset and QPError are possible from every state
// and need nothing.
var transitions = map[transition]attrSets{
	{verbs.QPReset, verbs.QPInit}: {
		need: [3]verbs.QPAttrMask{attrInit, attrInit, verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey},
	},
	{verbs.QPInit, verbs.QPInit}: {
		may: [3]verbs.QPAttrMask{attrInit, attrInit, verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey},
	},
	{verbs.QPInit, verbs.QPRTR}: {
		need: [3]verbs.QPAttrMask{attrPath | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer, attrPath, 0},
		may: [3]verbs.QPAttrMask{
			verbs.AttrPKeyIndex | verbs.AttrAccess, verbs.AttrPKeyIndex | verbs.AttrAccess, verbs.AttrPKeyIndex | verbs.AttrQKey,
		},
	},
	{verbs.QPRTR, verbs.QPRTS}: {
		need: [3]verbs.QPAttrMask{verbs.AttrSQPSN | attrTimers | verbs.AttrMaxRdAtomic, verbs.AttrSQPSN, verbs.AttrSQPSN},
		may:  whileConnected,
	},
	{verbs.QPRTS, verbs.QPRTS}: {may: whileConnected},
	{verbs.QPRTS, verbs.QPSQD}: {
		may: [3]verbs.QPAttrMask{verbs.AttrNotifyDrained, verbs.AttrNotifyDrained, verbs.AttrNotifyDrained},
	},
	{verbs.QPSQD, verbs.QPSQD}: {
		may: [3]verbs.QPAttrMask{
			attrInit | verbs.AttrAH | attrTimers | verbs.AttrMaxRdAtomic | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer,
			verbs.AttrPKeyIndex | verbs.AttrAccess | verbs.AttrAH,
			verbs.AttrPKeyIndex | verbs.AttrQKey,
		},
	},
	{verbs.QPSQD, verbs.QPRTS}: {may: whileConnected},
}

var whileConnected = [3]verbs.QPAttrMask{verbs.AttrAccess | verbs.AttrMinRNRTimer, verbs.AttrAccess, verbs.AttrQKey}

// allows reports whether Modify may do what it is asked.
func (q *qp) allows(attr *verbs.QPAttr, mask verbs.QPAttrMask) bool {
	from, to := q.attr.State, q.attr.State
	if mask&verbs.AttrState != 0 {
		to = attr.State
	}
	given := mask &^ verbs.AttrState
	switch {
	case q.id != nil && to != from && to != verbs.QPError:
		return false // its connection moves it
	case q.id != nil:
		return given&^verbs.AttrMinRNRTimer == 0 && (given == 0 || from == verbs.QPRTS && attr.MinRNRTimer <= maxTimer)
	case to == verbs.QPReset || to == verbs.QPError:
		return given == 0
	}
	sets, ok := transitions[transition{from, to}]
	need, may := sets.need[q.typ], sets.may[q.typ]
	return ok && given&need == need && given&^(need|may) == 0 && !(from == verbs.QPSQD && q.draining) && q.dev.valid(attr, given)
}

const (
	maxQPNum   = 1<<24 - 1
	maxPSN     = 1<<24 - 1
	maxTimer   = 31
	maxRetries = 7
)

// valid reports whether attributes have values that there are.
func (d *Device) valid(a *verbs.QPAttr, given verbs.QPAttrMask) bool {
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic
	for _, rule := range []struct {
		of verbs.QPAttrMask
		ok bool
	}{
		{verbs.AttrPort, a.Port >= 1 && a.Port <= d.attr.Ports},
		{verbs.AttrPKeyIndex, a.PKeyIndex == 0}, // the table has one entry
		{verbs.AttrAccess, a.Access&^access == 0},
		{verbs.AttrPathMTU, a.PathMTU >= 256 && a.PathMTU <= pathMTU && a.PathMTU&(a.PathMTU-1) == 0},
		{verbs.AttrAH, d.mayReach(&a.AH)},
		{verbs.AttrDestQPNum, a.DestQPNum <= maxQPNum},
		{verbs.AttrRQPSN, a.RQPSN <= maxPSN},
		{verbs.AttrSQPSN, a.SQPSN <= maxPSN},
		{verbs.AttrAckTimeout, a.AckTimeout <= maxTimer},
		{verbs.AttrRetryCount, a.RetryCount <= maxRetries},
		{verbs.AttrRNRRetry, a.RNRRetry <= maxRetries},
		{verbs.AttrMinRNRTimer, a.MinRNRTimer <= maxTimer},
		{verbs.AttrMaxRdAtomic, int(a.MaxRdAtomic) <= d.attr.MaxQPInitRdAtom},
		{verbs.AttrMaxDestRdAtomic, int(a.MaxDestRdAtomic) <= d.attr.MaxQPRdAtom},
	} {
		if given&rule.of != 0 && !rule.ok {
			return false
		}
	}
	return true
}

// write takes over attributes.
func (q *qp) write(attr *verbs.QPAttr, given verbs.QPAttrMask) {
	to := &q.attr
	for _, w := range []struct {
		of    verbs.QPAttrMask
		write func()
	}{
		{verbs.AttrMinRNRTimer, func() { to.MinRNRTimer = attr.MinRNRTimer }},
		{verbs.AttrAccess, func() { to.Access = attr.Access }},
		{verbs.AttrPort, func() { to.Port = attr.Port }},
		{verbs.AttrPKeyIndex, func() { to.PKeyIndex = attr.PKeyIndex }},
		{verbs.AttrQKey, func() { to.QKey = attr.QKey }},
		{verbs.AttrPathMTU, func() { to.PathMTU = attr.PathMTU }},
		{verbs.AttrAH, func() { to.AH = attr.AH }},
		{verbs.AttrDestQPNum, func() { to.DestQPNum = attr.DestQPNum }},
		{verbs.AttrRQPSN, func() { to.RQPSN, q.rc.expects = attr.RQPSN, attr.RQPSN }},
		{verbs.AttrSQPSN, func() { to.SQPSN, q.rc.psn = attr.SQPSN, attr.SQPSN }},
		{verbs.AttrAckTimeout, func() { to.AckTimeout = attr.AckTimeout }},
		{verbs.AttrRetryCount, func() { to.RetryCount = attr.RetryCount }},
		{verbs.AttrRNRRetry, func() { to.RNRRetry = attr.RNRRetry }},
		{verbs.AttrMaxRdAtomic, func() { to.MaxRdAtomic = attr.MaxRdAtomic }},
		{verbs.AttrMaxDestRdAtomic, func() { to.MaxDestRdAtomic = attr.MaxDestRdAtomic }},
		{verbs.AttrNotifyDrained, func() { q.notify = attr.NotifyDrained }},
	} {
		if given&w.of != 0 {
			w.write()
		}
	}
}

// Query implements verbs.QP.
func (q *qp) Query() (verbs.QPAttr, error) {
	if err := q.dev.host.before(Query); err != nil {
		return verbs.QPAttr{}, err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return verbs.QPAttr{}, err
	}
	return q.attr, nil
}

// Modify implements verbs.QP.
func (q *qp) Modify(attr verbs.QPAttr, mask verbs.QPAttrMask) error {
	if err := q.dev.host.before(Modify); err != nil {
		return err
	}
	q.fab.mu.Lock()
	defer q.fab.mu.Unlock()
	if err := q.usable(); err != nil {
		return err
	}
	if !q.allows(&attr, mask) {
		return os.NewSyscallError("ibv_modify_qp", syscall.EINVAL)
	}
	if q.dev.iwarp() {
		mask &^= verbs.AttrMinRNRTimer // nothing to write there
	}
	q.notify = false
	q.write(&attr, mask)
	if mask&verbs.AttrState != 0 {
		q.moveTo(attr.State)
	}
	return nil
}

// moveTo does what a state brings with it.
func (q *qp) moveTo(state verbs.QPState) {
	from := q.attr.State
	switch state {
	case verbs.QPReset:
		q.empty()
		q.tellPeer() // while it is known
		q.attr = verbs.QPAttr{}
	case verbs.QPError:
		q.toError()
		if q.out != nil {
			q.id.streamEnded()
		}
	case verbs.QPSQD:
		if from != verbs.QPSQD {
			q.stopSending()
		}
	default:
		q.attr.State = state
		q.connected()
	}
}

// connected lets go on what waits for the state, on both sides.
func (q *qp) connected() {
	q.pathChanged()
	if peer := q.peer(); peer != nil && q.operational() {
		peer.pathChanged() // it may have sent already
	}
}

// connect makes a QP that the CM has connected able to send and to receive.
func (q *qp) connect(attr verbs.QPAttr) {
	if q.gone || q.attr.State != verbs.QPInit {
		return
	}
	q.attr = attr
	q.attr.State = verbs.QPRTS
	q.rc.psn, q.rc.expects = attr.SQPSN, attr.RQPSN
	q.connected()
}

// stopSending moves a QP to SQD: what is under way is done, the rest waits.
func (q *qp) stopSending() {
	q.attr.State = verbs.QPSQD
	begun := q.next
	if q.rc.stall != nil && begun < q.sq.len() {
		begun++ // it is being tried again
	}
	q.hold = q.sqPosted - uint64(q.sq.len()-begun)
	q.draining = true
	q.checkDrained()
}

// checkDrained is called when a request has completed.
//
//go:norace
func (q *qp) checkDrained() {
	if !q.draining || q.sq.len() > 0 && q.sq.at(0).pos < q.hold {
		return
	}
	q.draining = false
	if q.notify {
		q.notify = false
		q.dev.async(verbs.AsyncEvent{Type: verbs.EventSQDrained, QPNum: q.num})
	}
}

func (q *qp) toError() {
	if q.gone || q.attr.State == verbs.QPError {
		return
	}
	q.attr.State = verbs.QPError
	q.rc.stall = nil
	q.next = 0
	q.draining = false
	q.flush()
	q.tellPeer()
	if q.srq != nil {
		// Behind the completions that are still on their way.
		life := q.life
		q.fab.in(&q.recvDone.lane, 0, func() {
			if q.life == life {
				q.dev.async(verbs.AsyncEvent{Type: verbs.EventQPLastWQEReached, QPNum: q.num})
			}
		})
	}
}

// empty takes back all requests without completions, and the completions that were not polled. What is still under way finds that its
// QP has another life.
func (q *qp) empty() {
	q.life++
	q.sq.clear()
	q.rq.clear()
	q.sqFreed, q.rqFreed = q.sqPosted, q.rqPosted
	q.next, q.reads = 0, 0
	q.halted, q.draining = false, false
	q.rc.stall = nil
	q.send.drop(q)
	q.recv.drop(q)
}
