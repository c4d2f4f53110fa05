package verbstest

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

func (s *suite) stateCases() []testCase {
	rc := byHand(verbs.RC)
	return []testCase{
		{"StatesOfCM", s.statesOfCM, nil},
		{"States", s.states, rc},
		{"StatesIllegal", s.statesIllegal, rc},
		{"StatesMissing", s.statesMissing, rc},
		{"StatesValues", s.statesValues, rc},
		{"StatesQuery", s.statesQuery, rc},
		{"StatesPosts", s.statesPosts, rc},
		{"StatesDrain", s.statesDrain, rc},
		{"StatesReset", s.statesReset, rc},
	}
}

// modification is what a change of state needs.
type modification struct {
	attr verbs.QPAttr
	mask verbs.QPAttrMask
}

// transitions are those to each state for a type of QP at a site, with a peer that there need not be.
func (p site) transitions(t *testing.T, typ verbs.QPType) map[verbs.QPState]modification {
	t.Helper()
	gid, err := p.dev.GID(p.port, p.gid)
	require.NoError(t, err)
	port, err := p.dev.Port(p.port)
	require.NoError(t, err)
	depth := uint8(min(p.dev.Attr().MaxQPRdAtom, p.dev.Attr().MaxQPInitRdAtom, 2))
	all := verbs.QPAttr{
		Access: verbs.AccessRemoteRead | verbs.AccessRemoteWrite, Port: p.port, QKey: 0x1234, PathMTU: 512,
		AH:        verbs.AHAttr{Port: p.port, LID: port.LID, Global: !gid.IsZero(), GID: gid, GIDIndex: p.gid, HopLimit: 64},
		DestQPNum: 0x4321, RQPSN: 5, SQPSN: 0xfffff0, AckTimeout: 13, RetryCount: 5, RNRRetry: 4, MinRNRTimer: 9,
		MaxRdAtomic: depth, MaxDestRdAtomic: depth,
	}
	masks := map[verbs.QPState]verbs.QPAttrMask{
		verbs.QPInit: verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrAccess,
		verbs.QPRTR:  verbs.AttrAH | verbs.AttrPathMTU | verbs.AttrDestQPNum | verbs.AttrRQPSN,
		verbs.QPRTS:  verbs.AttrSQPSN,
	}
	switch typ {
	case verbs.RC:
		masks[verbs.QPRTR] |= verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
		masks[verbs.QPRTS] |= verbs.AttrAckTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic
	case verbs.UD:
		masks[verbs.QPInit] = verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey
		masks[verbs.QPRTR] = 0
	}
	to := make(map[verbs.QPState]modification)
	for _, state := range []verbs.QPState{verbs.QPReset, verbs.QPInit, verbs.QPRTR, verbs.QPRTS, verbs.QPSQD, verbs.QPError} {
		all.State = state
		to[state] = modification{all, verbs.AttrState | masks[state]}
	}
	return to
}

// ways are the shortest ways from QPReset to each state.
var ways = map[verbs.QPState][]verbs.QPState{
	verbs.QPReset: {},
	verbs.QPInit:  {verbs.QPInit},
	verbs.QPRTR:   {verbs.QPInit, verbs.QPRTR},
	verbs.QPRTS:   {verbs.QPInit, verbs.QPRTR, verbs.QPRTS},
	verbs.QPSQD:   {verbs.QPInit, verbs.QPRTR, verbs.QPRTS, verbs.QPSQD},
	verbs.QPError: {verbs.QPInit, verbs.QPError},
}

// next are the states that may follow. From QPReset to QPError is not looked at: Linux refuses it.
var next = map[verbs.QPState][]verbs.QPState{
	verbs.QPReset: {verbs.QPInit, verbs.QPError},
	verbs.QPInit:  {verbs.QPRTR, verbs.QPError, verbs.QPReset},
	verbs.QPRTR:   {verbs.QPRTS, verbs.QPError, verbs.QPReset},
	verbs.QPRTS:   {verbs.QPSQD, verbs.QPError, verbs.QPReset},
	verbs.QPSQD:   {verbs.QPRTS, verbs.QPError, verbs.QPReset},
	verbs.QPError: {verbs.QPReset},
}

func (e *side) move(to modification) {
	e.t.Helper()
	require.NoError(e.t, e.qp.Modify(to.attr, to.mask), "to %v", to.attr.State)
	e.is(to.attr.State)
}

func (e *side) is(state verbs.QPState) verbs.QPAttr {
	e.t.Helper()
	q, err := e.qp.Query()
	require.NoError(e.t, err)
	require.Equal(e.t, state, q.State)
	return q
}

// refuses expects that a QP does not take attributes, and stays what it is.
func (e *side) refuses(to modification, why string, args ...any) {
	e.t.Helper()
	before, err := e.qp.Query()
	require.NoError(e.t, err)
	require.ErrorIs(e.t, e.qp.Modify(to.attr, to.mask), syscall.EINVAL, append([]any{why}, args...)...)
	after, err := e.qp.Query()
	require.NoError(e.t, err)
	require.Equal(e.t, before, after, append([]any{why}, args...)...)
}

// eachType runs a case for each type of QP that the device connects by hand.
func (s *suite) eachType(t *testing.T, f func(t *testing.T, p site, typ verbs.QPType, to map[verbs.QPState]modification)) {
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		p, _ := s.sites(t)
		if !p.dev.Attr().Caps.QPTypes.Has(typ) {
			t.Logf("left out: the device has no QPs of type %v", typ)
			continue
		}
		t.Run(typ.String(), func(t *testing.T) { f(t, p, typ, p.transitions(t, typ)) })
	}
}

// statesOfCM are moved by the connection alone, but for the end.
func (s *suite) statesOfCM(t *testing.T) {
	a, b := s.pair(t, size{})
	for _, to := range []modification{
		{verbs.QPAttr{State: verbs.QPReset}, verbs.AttrState},
		{verbs.QPAttr{State: verbs.QPInit}, verbs.AttrState},
		{verbs.QPAttr{State: verbs.QPRTR}, verbs.AttrState},
		{verbs.QPAttr{State: verbs.QPSQD}, verbs.AttrState},
		{verbs.QPAttr{Access: verbs.AccessRemoteRead}, verbs.AttrAccess},
		{verbs.QPAttr{State: verbs.QPError, SQPSN: 5}, verbs.AttrState | verbs.AttrSQPSN},
	} {
		a.refuses(to, "%+v", to)
	}
	a.sync(b)
	b.sync(a)
}

func (s *suite) states(t *testing.T) {
	s.eachType(t, func(t *testing.T, p site, typ verbs.QPType, to map[verbs.QPState]modification) {
		e := s.loneQP(t, p.dev, typ, size{})
		for from, way := range ways {
			for _, state := range next[from] {
				if from == verbs.QPReset && state == verbs.QPError {
					continue
				}
				for _, step := range way {
					e.move(to[step])
				}
				if from == verbs.QPSQD {
					s.leaveSQD(e, state)
				} else {
					e.move(to[state])
				}
				if state != verbs.QPReset {
					e.move(to[verbs.QPReset])
				}
			}
		}
	})
}

// leaveSQD moves a QP on, which may have to drain first. It has all attributes already.
func (s *suite) leaveSQD(e *side, state verbs.QPState) {
	e.t.Helper()
	s.eventually(e.t, "the send queue has drained", func() bool {
		err := e.qp.Modify(verbs.QPAttr{State: state}, verbs.AttrState)
		if err != nil {
			require.ErrorIs(e.t, err, syscall.EINVAL)
		}
		return err == nil
	})
	e.is(state)
}

func (s *suite) statesIllegal(t *testing.T) {
	s.eachType(t, func(t *testing.T, p site, typ verbs.QPType, to map[verbs.QPState]modification) {
		for from, way := range ways {
			e := s.loneQP(t, p.dev, typ, size{})
			for _, step := range way {
				e.move(to[step])
			}
			for state, with := range to {
				if state != from && !slices.Contains(next[from], state) {
					e.refuses(with, "%v to %v", from, state)
				}
			}
			for _, state := range []verbs.QPState{verbs.QPSQE, verbs.QPError + 1, 200} {
				e.refuses(modification{verbs.QPAttr{State: state}, verbs.AttrState}, "%v to %v", from, state)
			}
			e.close()
		}
	})
}

// attrs are all attributes but the state.
func attrs() (all []verbs.QPAttrMask) {
	for a := verbs.AttrState << 1; a <= verbs.AttrNotifyDrained; a <<= 1 {
		all = append(all, a)
	}
	return all
}

// statesMissing leaves out one attribute that a transition needs, and adds one that it does not take.
func (s *suite) statesMissing(t *testing.T) {
	tooMuch := map[verbs.QPState]verbs.QPAttrMask{
		verbs.QPInit: verbs.AttrSQPSN, verbs.QPRTR: verbs.AttrRetryCount, verbs.QPRTS: verbs.AttrDestQPNum,
	}
	s.eachType(t, func(t *testing.T, p site, typ verbs.QPType, to map[verbs.QPState]modification) {
		e := s.loneQP(t, p.dev, typ, size{})
		for _, state := range ways[verbs.QPRTS] {
			full := to[state]
			for _, a := range attrs() {
				if full.mask&a != 0 {
					e.refuses(modification{full.attr, full.mask &^ a}, "to %v without %#x", state, a)
				}
			}
			e.refuses(modification{full.attr, full.mask | tooMuch[state]}, "to %v with %#x", state, tooMuch[state])
			e.move(full)
		}
	})
}

// statesValues writes what is out of range.
func (s *suite) statesValues(t *testing.T) {
	p, _ := s.sites(t)
	to := p.transitions(t, verbs.RC)
	attr := p.dev.Attr()
	port, err := p.dev.Port(p.port)
	require.NoError(t, err)
	type change struct {
		name string
		f    func(*verbs.QPAttr)
	}
	wrong := map[verbs.QPState][]change{
		verbs.QPInit: {
			{"port 0", func(a *verbs.QPAttr) { a.Port = 0 }},
			{"port", func(a *verbs.QPAttr) { a.Port = attr.Ports + 1 }},
			{"access", func(a *verbs.QPAttr) { a.Access = 1 << 30 }},
		},
		verbs.QPRTR: {
			{"MTU 0", func(a *verbs.QPAttr) { a.PathMTU = 0 }},
			{"MTU 1000", func(a *verbs.QPAttr) { a.PathMTU = 1000 }},
			{"MTU 8192", func(a *verbs.QPAttr) { a.PathMTU = 8192 }},
			{"MinRNRTimer", func(a *verbs.QPAttr) { a.MinRNRTimer = 32 }},
			{"GID index", func(a *verbs.QPAttr) { a.AH.GIDIndex = port.GIDs }},
			{"AH's port", func(a *verbs.QPAttr) { a.AH.Port = attr.Ports + 1 }},
		},
		verbs.QPRTS: {
			{"RetryCount", func(a *verbs.QPAttr) { a.RetryCount = 8 }},
			{"RNRRetry", func(a *verbs.QPAttr) { a.RNRRetry = 8 }},
			{"AckTimeout", func(a *verbs.QPAttr) { a.AckTimeout = 32 }},
		},
	}
	if port.MaxMTU < 4096 {
		wrong[verbs.QPRTR] = append(wrong[verbs.QPRTR], change{"MTU", func(a *verbs.QPAttr) { a.PathMTU = 2 * port.MaxMTU }})
	}
	if port.Link == verbs.LinkEthernet {
		wrong[verbs.QPRTR] = append(wrong[verbs.QPRTR], change{"no GRH", func(a *verbs.QPAttr) { a.AH.Global = false }})
	}
	if attr.MaxQPRdAtom < 255 {
		wrong[verbs.QPRTR] = append(wrong[verbs.QPRTR], change{"depth", func(a *verbs.QPAttr) {
			a.MaxDestRdAtomic = uint8(attr.MaxQPRdAtom + 1)
		}})
	}
	if attr.MaxQPInitRdAtom < 255 {
		wrong[verbs.QPRTS] = append(wrong[verbs.QPRTS], change{"depth", func(a *verbs.QPAttr) {
			a.MaxRdAtomic = uint8(attr.MaxQPInitRdAtom + 1)
		}})
	}
	e := s.loneQP(t, p.dev, verbs.RC, size{})
	for _, state := range ways[verbs.QPRTS] {
		for _, c := range wrong[state] {
			with := to[state]
			c.f(&with.attr)
			e.refuses(with, "%v: %s", state, c.name)
		}
		e.move(to[state])
	}
}

// statesQuery reads back what was written.
func (s *suite) statesQuery(t *testing.T) {
	s.eachType(t, func(t *testing.T, p site, typ verbs.QPType, to map[verbs.QPState]modification) {
		e := s.loneQP(t, p.dev, typ, size{})
		e.is(verbs.QPReset)
		e.move(to[verbs.QPInit])
		w, q := to[verbs.QPInit].attr, e.is(verbs.QPInit)
		require.Equal(t, w.Port, q.Port)
		require.Equal(t, w.PKeyIndex, q.PKeyIndex)
		if typ == verbs.UD {
			require.Equal(t, w.QKey, q.QKey)
		} else {
			require.Equal(t, w.Access, q.Access)
		}
		e.move(to[verbs.QPRTR])
		if q = e.is(verbs.QPRTR); typ != verbs.UD {
			require.Equal(t, w.PathMTU, q.PathMTU)
			require.Equal(t, w.DestQPNum, q.DestQPNum)
			require.Equal(t, w.RQPSN, q.RQPSN)
			require.Equal(t, w.AH.GID, q.AH.GID)
			require.Equal(t, w.AH.GIDIndex, q.AH.GIDIndex)
			require.Equal(t, w.AH.Global, q.AH.Global)
			require.Equal(t, w.AH.LID, q.AH.LID)
		}
		if typ == verbs.RC {
			require.Equal(t, w.MaxDestRdAtomic, q.MaxDestRdAtomic)
			require.Equal(t, w.MinRNRTimer, q.MinRNRTimer)
		}
		e.move(to[verbs.QPRTS])
		q = e.is(verbs.QPRTS)
		require.Equal(t, w.SQPSN, q.SQPSN)
		if typ != verbs.RC {
			return
		}
		require.Equal(t, w.AckTimeout, q.AckTimeout)
		require.Equal(t, w.RetryCount, q.RetryCount)
		require.Equal(t, w.RNRRetry, q.RNRRetry)
		require.Equal(t, w.MaxRdAtomic, q.MaxRdAtomic)
		// What was written earlier is still there, and some may be changed.
		require.Equal(t, w.DestQPNum, q.DestQPNum)
		require.NoError(t, e.qp.Modify(verbs.QPAttr{MinRNRTimer: 3}, verbs.AttrMinRNRTimer))
		require.EqualValues(t, 3, e.is(verbs.QPRTS).MinRNRTimer)
	})
}

// statesPosts posts too early: a SEND before QPRTS, a receive before QPInit.
func (s *suite) statesPosts(t *testing.T) {
	pa, pb := s.sites(t)
	ha, hb := pa.hand(param()), pb.hand(param())
	a, b := s.loneQP(t, pa.dev, verbs.RC, size{}), s.byHandSide(t, pb, verbs.RC, size{recvs: 2}, hb)
	refused := func(what string, n int, err error) {
		t.Helper()
		require.Error(t, err, what)
		require.Zero(t, n, what)
	}
	early := func() (int, error) { return a.qp.PostSend([]verbs.SendWR{sendWR(77, a.sge(0, 8))}) }
	n, err := a.qp.PostRecv([]verbs.RecvWR{{ID: 77, SGL: a.slot(0)}})
	refused("receive in RESET", n, err)
	n, err = early()
	refused("SEND in RESET", n, err)

	require.NoError(t, ha.Init(a.qp))
	a.postRecv(5, a.slot(0))
	n, err = early()
	refused("SEND in INIT", n, err)

	a.local, err = ha.Local(a.dev, a.qp)
	require.NoError(t, err)
	b.connectTo(a)
	to := pa.transitions(t, verbs.RC)[verbs.QPRTR]
	to.attr.AH, to.attr.DestQPNum, to.attr.RQPSN, to.attr.PathMTU = ha.Path(b.local), b.local.QPNum, b.local.PSN, 1024
	a.move(to)
	n, err = early()
	refused("SEND in RTR", n, err)

	// It receives already.
	b.post(sendWR(1, b.sge(0, 8)))
	a.received(5, 8)
	b.sent(1, verbs.WCSend)

	to = pa.transitions(t, verbs.RC)[verbs.QPRTS]
	to.attr.SQPSN = a.local.PSN
	a.move(to)
	a.post(sendWR(2, a.sge(0, 16)))
	a.sent(2, verbs.WCSend)
	b.received(0, 16) // the first that arrives
}

// statesDrain stops the send queue and lets it go on.
func (s *suite) statesDrain(t *testing.T) {
	a, b := s.changed(t, size{recvs: 4}, func(_, _ *verbs.ByHand) {})
	w := s.watcher(t, a.dev)
	a.post(sendWR(1, a.sge(0, 8)))
	b.received(0, 8)
	a.sent(1, verbs.WCSend)
	require.NoError(t, a.qp.Modify(verbs.QPAttr{State: verbs.QPSQD, NotifyDrained: true}, verbs.AttrState|verbs.AttrNotifyDrained))
	s.come(t, w, 1, verbs.EventSQDrained, aboutQP(a.qp))
	a.is(verbs.QPSQD)

	a.post(sendWR(2, a.sge(0, 16)))
	b.post(sendWR(3, b.sge(0, 8))) // its receive queue goes on
	a.received(0, 8)
	b.sent(3, verbs.WCSend)
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
	require.NoError(t, a.poll())
	require.Empty(t, a.sends)

	s.leaveSQD(a, verbs.QPRTS)
	if s.SQDWaits {
		a.post(sendWR(4, a.sge(0, 24)))
	}
	b.received(1, 16)
	a.sent(2, verbs.WCSend)
}

// statesReset empties the queues without completions. The QPs can be connected again, and nothing of before comes.
func (s *suite) statesReset(t *testing.T) {
	a, b := s.changed(t, size{}, func(_, _ *verbs.ByHand) {})
	for round := range 3 {
		for i := range 4 {
			a.postRecv(uint64(10*round+i), a.slot(i))
		}
		// These wait for receives, or are on their way.
		fill(a.mr.Bytes()[:64], byte(round))
		a.post(sendWR(50, a.sge(0, 20)), sendWR(51, a.sge(0, 21)))
		for _, e := range []*side{a, b} {
			require.NoError(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.AttrState))
		}
		for _, e := range []*side{a, b} {
			e.is(verbs.QPReset)
			require.NoError(t, e.poll())
			require.Empty(t, e.sends)
			require.Empty(t, e.recvs)
		}
		for _, e := range []*side{a, b} {
			e.hand.PSN += 0x100000
			require.NoError(t, e.hand.Init(e.qp))
			local, err := e.hand.Local(e.dev, e.qp)
			require.NoError(t, err)
			require.Equal(t, e.local.QPNum, local.QPNum)
			e.local = local
		}
		a.postRecv(100, a.slot(0))
		b.postRecv(200, b.slot(0))
		a.connectTo(b)
		b.connectTo(a)
		a.post(sendWR(1, a.sge(0, 8)))
		b.received(200, 8)
		a.sent(1, verbs.WCSend)
		b.post(sendWR(2, b.sge(0, 9)))
		a.received(100, 9)
		b.sent(2, verbs.WCSend)
	}
}
