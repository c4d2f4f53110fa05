package verbstest

import (
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/verbs"
	"github.com/stretchr/testify/require"
)

// byHandCases are those of QPs that are connected by hand, and once more the cases that need no more than connected QPs.
func (s *suite) byHandCases() []testCase {
	rc := byHand(verbs.RC)
	cases := []testCase{
		{"ByHandEndpoint", s.byHandEndpoint, rc},
		{"ByHandObjects", s.byHandObjects, rc},
		{"ByHandOneDevice", s.byHandOneDevice, rc},
		{"ByHandWrongPSN", s.byHandWrongPSN, rc},
		{"ByHandWrongQP", s.byHandWrongQP, rc},
		{"ByHandPeerGone", s.byHandPeerGone, rc},
		{"ByHandRNRRetry", s.byHandRNRRetry, rc},
		{"ByHandAccess", s.byHandAccess, rc},
	}
	h := &suite{s.Env}
	h.byHand = true
	cases = append(cases, testCase{"ByHandCQOverrun", h.cqOverrun, rc}, testCase{"ByHandCloseWhileBusy", h.closeWhileBusy, rc})
	ofCM := []string{"ReadNoDepth", "AtomicNoDepth", "DepthLimit", "ReceiveFirst"}
	for _, c := range slices.Concat(h.dataCases(), h.errorCases(), h.atomicCases(), h.immediateCases(), h.srqCases()) {
		if !slices.Contains(ofCM, c.name) {
			cases = append(cases, testCase{"ByHand" + c.name, c.run, rc.and(c.needs)})
		}
	}
	return cases
}

// site is where a QP is that is connected by hand: a port and one of its addresses.
type site struct {
	dev       verbs.Device
	port, gid int
}

// sites are those of the two ends.
func (s *suite) sites(t *testing.T) (a, b site) {
	t.Helper()
	id := s.resolve(t, netip.AddrPortFrom(s.Addr, 7471))
	return siteOf(t, id.Device(), id.LocalAddr().Addr()), siteOf(t, s.peerDevice(t), s.Addr)
}

// siteOf finds the entry of a GID table that stands for an address; that of RoCE v2 if there are several.
func siteOf(t *testing.T, d verbs.Device, addr netip.Addr) site {
	t.Helper()
	found := site{dev: d}
	for port := 1; port <= d.Attr().Ports; port++ {
		p, err := d.Port(port)
		require.NoError(t, err)
		if p.Link != verbs.LinkEthernet {
			return site{d, port, 0}
		}
		for index := range p.GIDs {
			gid, err := d.GID(port, index)
			require.NoError(t, err)
			if gid != verbs.GID(addr.WithZone("").As16()) {
				continue
			}
			typ, err := d.GIDType(port, index)
			require.NoError(t, err)
			if found.port == 0 || typ == verbs.GIDTypeRoCEv2 {
				found = site{d, port, index}
			}
		}
	}
	require.NotZero(t, found.port, "no GID of %s is %v", d.Name(), addr)
	return found
}

const remoteFlags = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic

// hand is how a QP at the place is connected. Its packet sequence numbers pass 2^24 soon.
func (p site) hand(c cm.ConnParam) verbs.ByHand {
	return verbs.ByHand{
		Port: p.port, GIDIndex: p.gid, PSN: 0xfffffd, Access: remoteFlags, QKey: 0x1234,
		AckTimeout: c.AckTimeout, RetryCount: c.RetryCount, RNRRetry: c.RNRRetryCount, MinRNRTimer: c.MinRNRTimer,
		MaxRdAtomic: c.InitiatorDepth, MaxDestRdAtomic: c.ResponderResources,
	}
}

// loneQP is a side with a QP in the state QPReset.
func (s *suite) loneQP(t *testing.T, d verbs.Device, typ verbs.QPType, z size) *side {
	t.Helper()
	z = z.orDefaults()
	e := s.equipped(t, d, z)
	o := e.options(z)
	o.Type = typ
	var err error
	e.qp, err = e.pd.CreateQP(o)
	require.NoError(t, err)
	require.Equal(t, typ, e.qp.Type())
	return e
}

// byHandSide is a side with a QP that is to be connected by hand, in the state QPInit.
func (s *suite) byHandSide(t *testing.T, at site, typ verbs.QPType, z size, hand verbs.ByHand) *side {
	t.Helper()
	e := s.loneQP(t, at.dev, typ, z)
	e.hand = hand
	require.NoError(t, e.hand.Init(e.qp))
	e.postFirst(z)
	var err error
	e.local, err = e.hand.Local(e.dev, e.qp)
	require.NoError(t, err)
	require.Equal(t, e.qp.Num(), e.local.QPNum)
	return e
}

func (e *side) connectTo(peer *side) {
	e.t.Helper()
	require.NoError(e.t, e.hand.Connect(e.qp, peer.local))
}

// connectByHand connects two QPs; change, if any, is made on both ways of doing it.
func (s *suite) connectByHand(t *testing.T, typ verbs.QPType, dial, accept end, change ...func(a, b *verbs.ByHand)) (a, b *side) {
	t.Helper()
	pa, pb := s.sites(t)
	ha, hb := pa.hand(dial.param), pb.hand(accept.param)
	hb.PSN = 0x12345
	for _, f := range change {
		f(&ha, &hb)
	}
	a = s.byHandSide(t, pa, typ, dial.size, ha)
	b = s.byHandSide(t, pb, typ, accept.size, hb)
	a.connectTo(b)
	b.connectTo(a)
	return a, b
}

// changed makes a pair of RC QPs.
func (s *suite) changed(t *testing.T, z size, change func(a, b *verbs.ByHand)) (a, b *side) {
	t.Helper()
	return s.connectByHand(t, verbs.RC, end{z, param()}, end{z, param()}, change)
}

// impatient gives up soon.
func impatient(a, _ *verbs.ByHand) { a.AckTimeout, a.RetryCount = 12, 2 }

func (s *suite) byHandEndpoint(t *testing.T) {
	p, _ := s.sites(t)
	e := s.loneQP(t, p.dev, verbs.RC, size{})
	h := p.hand(param())
	h.PSN = 1<<24 | 7
	local, err := h.Local(p.dev, e.qp)
	require.NoError(t, err)
	require.Equal(t, e.qp.Num(), local.QPNum)
	require.EqualValues(t, 7, local.PSN)
	gid, err := p.dev.GID(p.port, p.gid)
	require.NoError(t, err)
	require.Equal(t, gid, local.GID)
	port, err := p.dev.Port(p.port)
	require.NoError(t, err)
	require.Equal(t, port.LID, local.LID)

	h.GIDIndex = port.GIDs
	_, err = h.Local(p.dev, e.qp)
	require.ErrorIs(t, err, syscall.EINVAL)
	h.Port = p.dev.Attr().Ports + 1
	_, err = h.Local(p.dev, e.qp)
	require.Error(t, err)
}

// byHandObjects makes QPs of what does not fit, and closes what is used.
func (s *suite) byHandObjects(t *testing.T) {
	p, _ := s.sites(t)
	e := s.loneQP(t, p.dev, verbs.RC, size{})
	require.NotZero(t, e.qp.Num())
	require.ErrorIs(t, e.pd.Close(), verbs.ErrBusy)
	require.ErrorIs(t, e.sendCQ.Close(), verbs.ErrBusy)
	require.ErrorIs(t, e.recvCQ.Close(), verbs.ErrBusy)
	q, err := e.qp.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPReset, q.State)

	for _, change := range []func(*verbs.QPOptions){
		func(o *verbs.QPOptions) { o.SendCQ = otherCQ{o.SendCQ} },
		func(o *verbs.QPOptions) { o.RecvCQ = otherCQ{o.RecvCQ} },
	} {
		o := e.options(size{}.orDefaults())
		change(&o)
		_, err := e.pd.CreateQP(o)
		require.ErrorIs(t, err, verbs.ErrForeign)
	}
	attr := p.dev.Attr()
	for _, change := range []func(*verbs.QPCap){
		func(c *verbs.QPCap) { c.MaxSendWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxRecvWR = attr.MaxQPWR + 1 },
		func(c *verbs.QPCap) { c.MaxSendSGE = attr.MaxSGE + 1 },
		func(c *verbs.QPCap) { c.MaxRecvSGE = attr.MaxSGE + 1 },
	} {
		o := e.options(size{}.orDefaults())
		change(&o.Cap)
		_, err := e.pd.CreateQP(o)
		limit := new(verbs.LimitError)
		require.ErrorAs(t, err, &limit)
		require.Equal(t, limit.Max+1, limit.Got)
	}
	_, err = e.pd.CreateQP(verbs.QPOptions{Cap: e.qp.Cap()})
	require.ErrorIs(t, err, syscall.EINVAL, "without CQs")

	o := e.options(size{}.orDefaults())
	e.close()
	e.close()
	_, err = e.qp.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.ErrorIs(t, e.qp.Modify(verbs.QPAttr{State: verbs.QPError}, verbs.AttrState), verbs.ErrClosed)
	_, err = e.pd.CreateQP(o)
	require.ErrorIs(t, err, verbs.ErrClosed)
	pd, err := p.dev.AllocPD()
	require.NoError(t, err)
	_, err = pd.CreateQP(o)
	require.ErrorIs(t, err, verbs.ErrClosed, "on closed CQs")
	require.NoError(t, pd.Close())
}

// byHandOneDevice connects two QPs of one device and PD, that have one CQ for everything.
func (s *suite) byHandOneDevice(t *testing.T) {
	p, _ := s.sites(t)
	hand := p.hand(param())
	a := s.byHandSide(t, p, verbs.RC, size{}, hand)
	b := s.byHandSide(t, p, verbs.RC, size{pd: a.pd}, hand)
	a.connectTo(b)
	b.connectTo(a)
	for i := range 3 {
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		fill(from.mr.Bytes()[:5000], byte(i))
		to.postRecv(1, to.sge(10000, 5000))
		from.post(sendWR(2, from.sge(0, 5000)))
		to.received(1, 5000)
		from.sent(2, verbs.WCSend)
		require.True(t, has(to.mr.Bytes()[10000:15000], byte(i)))
	}
}

// noAnswer expects that a's messages come to nothing: b has a receive posted.
func (s *suite) noAnswer(t *testing.T, a, b *side) {
	t.Helper()
	before := string(b.mr.Bytes())
	a.post(sendWR(1, a.sge(0, 8)), a.writeWR(2, a.sge(0, 8), b, 0))
	wc := a.nextSend()
	require.Equal(t, verbs.StatusRetryExcErr, wc.Status)
	require.EqualValues(t, 1, wc.ID)
	wc = a.nextSend()
	require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
	require.Equal(t, before, string(b.mr.Bytes()))
	q, err := a.qp.Query()
	require.NoError(t, err)
	require.Equal(t, verbs.QPError, q.State)
}

// byHandWrongPSN has one end begin where the other does not expect it.
func (s *suite) byHandWrongPSN(t *testing.T) {
	pa, pb := s.sites(t)
	ha, hb := pa.hand(param()), pb.hand(param())
	impatient(&ha, &hb)
	a := s.byHandSide(t, pa, verbs.RC, size{}, ha)
	b := s.byHandSide(t, pb, verbs.RC, size{recvs: 1}, hb)
	fill(a.mr.Bytes()[:8], 1)
	a.connectTo(b)
	a.local.PSN = (a.local.PSN - 1000) & 0xffffff
	b.connectTo(a)
	s.noAnswer(t, a, b)
}

// byHandWrongQP sends to a QP that does not exist.
func (s *suite) byHandWrongQP(t *testing.T) {
	pa, pb := s.sites(t)
	ha, hb := pa.hand(param()), pb.hand(param())
	impatient(&ha, &hb)
	a := s.byHandSide(t, pa, verbs.RC, size{}, ha)
	b := s.byHandSide(t, pb, verbs.RC, size{recvs: 1}, hb)
	fill(a.mr.Bytes()[:8], 1)
	b.connectTo(a)
	b.local.QPNum = (b.local.QPNum + 0x5a5a5a) & 0xffffff
	a.connectTo(b)
	s.noAnswer(t, a, b)
}

// byHandPeerGone closes the peer's QP: nothing tells, but nothing answers.
func (s *suite) byHandPeerGone(t *testing.T) {
	a, b := s.changed(t, size{recvs: 1}, impatient)
	require.NoError(t, b.qp.Close())
	a.post(sendWR(1, a.sge(0, 8)))
	require.Equal(t, verbs.StatusRetryExcErr, a.nextSend().Status)
	wc := a.nextRecv()
	require.Equal(t, verbs.StatusWRFlushErr, wc.Status)
}

// byHandRNRRetry finds no receive, and gives up.
func (s *suite) byHandRNRRetry(t *testing.T) {
	a, b := s.changed(t, size{}, func(a, b *verbs.ByHand) { a.RNRRetry, b.MinRNRTimer = 2, 1 })
	a.post(sendWR(1, a.sge(0, 8)))
	wc := a.nextSend()
	require.Equal(t, verbs.StatusRNRRetryExcErr, wc.Status)
	require.EqualValues(t, 1, wc.ID)
	require.NoError(t, b.poll())
	require.Empty(t, b.recvs)
}

// byHandAccess does what the memory allows, but the QP does not.
func (s *suite) byHandAccess(t *testing.T) {
	caps := s.common(t).Caps
	for _, r := range reaches {
		if !caps.Send.Has(r.op) {
			continue
		}
		t.Run(r.op.String(), func(t *testing.T) {
			a, b := s.changed(t, size{recvs: 1}, func(_, b *verbs.ByHand) { b.Access = remoteFlags &^ r.access })
			mr := b.region(4096, everyAccess)
			fill(a.mr.Bytes()[:64], 9)
			own := string(a.mr.Bytes())
			a.post(r.wr(a, mr))
			s.requireNoReach(t, a, b, r.op, verbs.StatusRemInvReqErr)
			require.Equal(t, make([]byte, 4096), mr.Bytes())
			require.Equal(t, own, string(a.mr.Bytes()))
		})
	}
}
