package main

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rconn/rdma/cm"
	"github.com/rconn/rdma/examples/internal/end"
	"github.com/rconn/rdma/verbs"
)

// batch is how many completions are taken at once, and how many receives are posted at once.
const batch = 32

// config shapes a server.
type config struct {
	recvs   int           // receives that are posted
	clients int           // that share them
	starve  time.Duration // receives are posted again so much too late
}

// server answers all clients from one goroutine. They share a receive queue, because most of them are silent most of the
// time: receives for each alone would be memory that lies idle.
type server struct {
	config  config
	ln      cm.Listener
	objects *end.Objects // recvs slots for requests, then 2*recvs for answers
	srq     verbs.SRQ
	ignore  func() // events of the device
	armed   atomic.Bool

	mu      sync.Mutex // guards what follows, and who takes completions
	clients map[uint32]*client
	joined  uint32 // clients that there have been
	store   map[uint64][valueSize]byte
	waiting []verbs.Completion // requests that no answer slot was free for
	free    []int              // answer slots
	sent    map[uint64]answer  // under way, by ID
	lastID  uint64
	wcs     [batch]verbs.Completion

	requests, batches, low atomic.Int64 // what there was
}

// client is the server's end of a connection.
type client struct {
	conn *end.Conn
	out  []verbs.SendWR // answers to be posted
}

// answer is a SEND under way.
type answer struct {
	slot int
	to   *client
}

// isAnswer marks the ID of an answer's request; that of a receive is its slot.
const isAnswer = 1 << 63

func newServer(local netip.AddrPort, c config) (*server, error) {
	ln, err := end.Listen(local)
	if err != nil {
		return nil, err
	}
	s := &server{
		config: c, ln: ln, clients: map[uint32]*client{}, store: map[uint64][valueSize]byte{}, sent: map[uint64]answer{},
	}
	if err := s.build(ln.Device()); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *server) build(dev verbs.Device) (err error) {
	if err := end.Need(dev, verbs.OpSend); err != nil {
		return err
	}
	if dev.Attr().MaxSRQ == 0 {
		return &verbs.UnsupportedError{Device: dev.Name(), What: "shared receive queues"}
	}
	if s.objects, err = end.NewObjects(dev, 3*s.config.recvs*slotSize, verbs.AccessLocalWrite, 3*s.config.recvs); err != nil {
		return err
	}
	if s.srq, err = s.objects.PD.CreateSRQ(verbs.SRQOptions{MaxWR: s.config.recvs}); err != nil {
		return err
	}
	s.ignore = dev.Watch(func(e verbs.AsyncEvent) {
		if e.Type == verbs.EventSRQLimitReached && e.SRQ == s.srq {
			s.low.Add(1)
			s.armed.Store(false)
		}
	})
	slots := make([]int, s.config.recvs)
	for i := range slots {
		slots[i] = i
		s.free = append(s.free, s.config.recvs+2*i, s.config.recvs+2*i+1)
	}
	return s.refill(slots)
}

func (s *server) slot(i int) message { return s.objects.MR.Bytes()[i*slotSize:][:slotSize] }

// refill posts receives, all in one call, and has the device tell when three quarters of them are used up again.
func (s *server) refill(slots []int) error {
	wrs := make([]verbs.RecvWR, len(slots))
	for i, slot := range slots {
		wrs[i] = verbs.RecvWR{ID: uint64(slot), SGL: s.objects.SGE(slot*slotSize, slotSize)}
	}
	if _, err := s.srq.PostRecv(wrs); err != nil {
		return err
	}
	if !s.armed.Swap(true) {
		return s.srq.SetLimit(s.config.recvs / 4)
	}
	return nil
}

// accept makes connections until ctx ends.
func (s *server) accept(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		req, err := s.ln.Accept(ctx)
		if err != nil {
			return err
		}
		wg.Go(func() { s.attend(ctx, req) })
	}
}

// attend is a connection's life.
func (s *server) attend(ctx context.Context, req cm.Request) {
	c, hello, err := s.join(ctx, req)
	if err != nil {
		why := err.Error()
		_ = req.Reject([]byte(why[:min(len(why), cm.MaxRejectData)]))
		_ = req.Close()
		return
	}
	defer s.leave(c)
	if req.Accept(ctx, end.Param(hello.bytes())) == nil {
		<-c.conn.Gone().Done()
	}
}

func (s *server) join(ctx context.Context, req cm.Request) (*client, welcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.clients) == s.config.clients {
		return nil, welcome{}, errors.New("too many clients") // there would be no receives for its credits
	}
	conn, err := end.NewConn(ctx, req, s.objects.PD, verbs.QPOptions{
		SendCQ: s.objects.CQ, RecvCQ: s.objects.CQ, SRQ: s.srq, SignalAll: true,
		Cap: verbs.QPCap{MaxSendWR: 2 * s.config.recvs, MaxSendSGE: 1},
	})
	if err != nil {
		return nil, welcome{}, err
	}
	c := &client{conn: conn}
	s.clients[conn.QP.Num()] = c
	s.joined++
	return c, welcome{credits: uint32(s.config.recvs / s.config.clients), client: s.joined}, nil
}

// leave closes a connection. Completions that its QP has left go with it, so they are taken first: receives among them belong to all.
func (s *server) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = c.conn.ID.Disconnect()
	for n, err := s.pollBatch(); n > 0 && err == nil; {
		n, err = s.pollBatch()
	}
	delete(s.clients, c.conn.QP.Num())
	for i := range s.waiting {
		if s.waiting[i].QPNum == c.conn.QP.Num() {
			s.waiting[i].QPNum = 0 // nobody's: the number may be another QP's soon
		}
	}
	_ = c.conn.Close()
	for id, a := range s.sent {
		if a.to == c {
			s.done(id)
		}
	}
	_ = s.serveBatch(nil) // requests may have waited for those slots
}

// serve answers requests until ctx ends.
func (s *server) serve(ctx context.Context) error {
	defer s.objects.WakeAtEnd(ctx)()
	for {
		s.mu.Lock() // clients come and go between two batches
		n, err := s.pollBatch()
		s.mu.Unlock()
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && n == 0 {
			err = s.objects.Channel.Wait(0)
		}
		if err != nil {
			return err
		}
	}
}

// pollBatch serves what has come, and returns how many completions that was.
func (s *server) pollBatch() (int, error) {
	n, err := s.objects.CQ.Poll(s.wcs[:])
	if n == 0 || err != nil {
		return 0, err
	}
	return n, s.serveBatch(s.wcs[:n])
}

// serveBatch reads requests, gives their receives back, and then answers. In this order, an answer is a credit: whoever has it may send the next
// request, for which there is a receive.
func (s *server) serveBatch(wcs []verbs.Completion) error {
	var used []int
	for _, wc := range wcs {
		switch {
		case wc.ID&isAnswer != 0:
			s.done(wc.ID)
		case wc.Err() != nil:
			used = append(used, int(wc.ID)) // flushed with its QP
		default:
			s.waiting = append(s.waiting, wc)
		}
	}
	requests := s.waiting[:min(len(s.waiting), len(s.free))]
	for _, wc := range requests {
		used = append(used, int(wc.ID))
		s.answer(wc)
	}
	s.waiting = s.waiting[len(requests):]
	if len(requests) > 0 {
		s.requests.Add(int64(len(requests)))
		s.batches.Add(1)
		time.Sleep(s.config.starve)
	}
	if len(used) > 0 {
		if err := s.refill(used); err != nil {
			return err
		}
	}
	for _, c := range s.clients {
		s.post(c)
	}
	return nil
}

// answer does what a request wants and prepares the answer.
func (s *server) answer(wc verbs.Completion) {
	c := s.clients[wc.QPNum]
	request := s.slot(int(wc.ID))
	if c == nil || wc.ByteLen < headerSize || request.op() == opPut && wc.ByteLen != slotSize {
		return // no request of ours
	}
	slot := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	reply, size := s.slot(slot), headerSize
	value, found := s.store[request.key()]
	switch {
	case request.op() == opPut:
		s.store[request.key()] = [valueSize]byte(request.value())
		reply.setHeader(request.number(), 0, request.key())
	case !found:
		reply.setHeader(request.number(), 0, request.key())
	default:
		reply.setHeader(request.number(), 1, request.key())
		copy(reply.value(), value[:])
		size = slotSize
	}
	s.lastID++
	id := isAnswer | s.lastID
	s.sent[id] = answer{slot, c}
	c.out = append(c.out, verbs.SendWR{ID: id, Opcode: verbs.OpSend, SGL: s.objects.SGE(slot*slotSize, size)})
}

// post sends a client's answers, all in one call. What a QP that has failed does not take is done.
func (s *server) post(c *client) {
	if len(c.out) == 0 {
		return
	}
	n, _ := c.conn.QP.PostSend(c.out)
	for _, wr := range c.out[n:] {
		s.done(wr.ID)
	}
	c.out = c.out[:0]
}

// done frees an answer's slot, once.
func (s *server) done(id uint64) {
	if a, ok := s.sent[id]; ok {
		s.free = append(s.free, a.slot)
		delete(s.sent, id)
	}
}

// run is a server's life, until ctx ends.
func (s *server) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	accepted := make(chan error, 1)
	go func() { accepted <- s.accept(ctx) }()
	err := s.serve(ctx)
	cancel()
	<-accepted
	return err
}

func (s *server) close() error {
	errs := []error{s.ln.Close()}
	if s.ignore != nil {
		s.ignore()
	}
	if s.srq != nil {
		errs = append(errs, s.srq.Close())
	}
	if s.objects != nil {
		errs = append(errs, s.objects.Close())
	}
	return errors.Join(errs...)
}
