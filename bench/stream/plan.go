package main

import (
	"fmt"
	"slices"
	"time"
)

// The groups of work: each becomes a table.
const (
	gRoundTrip = "round trip"
	gStream    = "stream"
	gBoth      = "both ways"
	gMixed     = "mixed pairs"
	gFile      = "file"
	gShare     = "share"
	gFan       = "connections"
	gConnects  = "connects"
	gHTTP      = "http"
	gIdle      = "idle"
)

// groups are in the order in which they are measured and shown.
var groups = []string{gRoundTrip, gStream, gBoth, gMixed, gFile, gShare, gFan, gConnects, gHTTP, gIdle}

// about tells what a group's work is.
var about = map[string]string{
	gRoundTrip: "One message at a time, there and back. The figure is the mean time of one way, half of a round trip; median and p99 too.",
	gStream:    "Writes of one size, one way, then as many back. CPU is that of both processes, without the kernel's own threads.",
	gBoth:      "Writes of one size in both directions at once; the rate is the sum.",
	gMixed:     "rstream and rconn, the connecting one first.",
	gFile:      "A file of 16 MiB to a connection by io.Copy, the other end reads.",
	gShare:     "Writes of 64 KiB one way on 8 connections at once; uneven is how far the one that differs most is from an equal share.",
	gFan:       "64 bytes there and back on so many connections at once.",
	gConnects:  "Connect, one byte, close, one after the other; cmtime connects 100 at once.",
	gHTTP:      "Requests of net/http for 1 KiB on 8 connections.",
	gIdle:      "1000 connections that do nothing. Pinned is what the processes pin for the device, kernel what the kernel has taken, queues of the device too.",
}

// job is a work with its contenders.
type job struct {
	name, group, unit string
	smaller           bool // is better
	size, conns       int
	longer            int  // times the usual length of a measurement; 0 is 1
	kept              task // of kept connections, see keep.go; without a Kind there are none
	contenders        []contender
}

// bulk is how much longer a stream of large writes is measured: rings grow once in the life of a connection, and each measurement has a new
// one.
const bulk = 3

// contender does a work n times, which means what is fit for the work, on average a moment each.
type contender struct {
	name      string
	run       func(b *bench, n int) (sample, error)
	transport transport // instead of run: of kept connections
}

func (j job) isKept() bool { return j.kept.Kind != "" }

// rival is a way for two Go processes to be connected.
type rival struct {
	name string
	transport
}

// parkOnly and spinLong are rconn.Config.Spin of the contenders that only sleep and that practically only spin.
const (
	parkOnly = -1
	spinLong = 5 * time.Millisecond
)

// Names of contenders that goals compare or plots tell apart.
const (
	cRconn     = "rconn"
	cRconnSpin = "rconn, spinning"
	cRconnPark = "rconn, spin 0"
	cSoftware  = "rconn, software device"
	cTCP       = "Go TCP"
	cUnix      = "Go Unix socket"
	cRstream   = "rstream"
	cBlocking  = "rstream -T b"
	cWriteBW   = "ib_write_bw"
	cWriteLat  = "ib_write_lat"
	cSendLat   = "ib_send_lat"
	cSendEvent = "ib_send_lat -e"
	cRsocket   = "C rsocket"
	cTimed     = "C rsocket, timed"
	cCmtime    = "cmtime"
)

// planFor lists all work that is wanted.
func planFor(o options) []job {
	p := planner{device: o.addr}
	for _, size := range []int{1, 64, 1 << 10, 4 << 10, 64 << 10} {
		p.roundTrip(size)
	}
	for _, size := range []int{64, 1 << 10, 16 << 10, 64 << 10, 1 << 20, 4 << 20} {
		p.stream(size)
	}
	p.both(64 << 10)
	p.both(1 << 20)
	if p.device != "" {
		p.mixed(64 << 10)
		p.mixed(1 << 20)
	}
	p.file()
	p.add(job{name: "share", group: gShare, unit: "MiB/s", size: 64 << 10, conns: 8},
		p.rivals(), func(n int, j job) task {
			return task{Kind: share, Size: j.size, Count: 4 * max(n, 400), Conns: j.conns} // much more than all rings hold
		})
	for _, n := range []int{1, 10} {
		p.add(job{name: fmt.Sprintf("connections %d", n), group: gFan, unit: "messages/s", size: 64, conns: n},
			p.rivals(), func(n int, j job) task { return task{Kind: fan, Size: j.size, Iters: n, Conns: j.conns} })
	}
	p.many(100)
	p.many(1000)
	p.connects()
	p.add(job{name: "http", group: gHTTP, unit: "requests/s", size: 1 << 10, conns: 8},
		p.rivals(), func(n int, j job) task { return task{Kind: requests, Size: j.size, Count: n, Conns: j.conns} })
	p.idle()

	var wanted []job
	for _, j := range p.jobs {
		if o.who != nil {
			j.contenders = slices.DeleteFunc(j.contenders, func(c contender) bool { return !o.who.MatchString(c.name) })
		}
		if len(j.contenders) > 0 && (o.only == nil || o.only.MatchString(j.name)) {
			wanted = append(wanted, j)
		}
	}
	return wanted
}

type planner struct {
	device string // the address of one, or empty
	jobs   []job
}

// rivals are those that every work has, in the order of the tables.
func (p *planner) rivals() []rival {
	all := []rival{
		{cSoftware, transport{Kind: onSoftware, Addr: "127.0.0.1"}},
		{cTCP, transport{Kind: onTCP, Addr: "127.0.0.1"}},
		{cUnix, transport{Kind: onUnix}},
	}
	if p.device != "" {
		all = append([]rival{{cRconn, transport{Kind: onDevice, Addr: p.device}}}, all...)
	}
	return all
}

// add makes contenders of rivals and of what is special to a work.
func (p *planner) add(j job, rivals []rival, t func(n int, j job) task, more ...contender) {
	for _, r := range rivals {
		j.contenders = append(j.contenders, contender{name: r.name, run: func(b *bench, n int) (sample, error) {
			return b.pair.run(r.transport, t(n, j))
		}})
	}
	j.contenders = append(more, j.contenders...)
	p.jobs = append(p.jobs, j)
}

func (p *planner) roundTrip(size int) {
	j := job{name: "round trip " + bytesText(size), group: gRoundTrip, unit: "µs", smaller: true, size: size}
	rivals := p.rivals()
	t := func(n int, j job) task { return task{Kind: transfer, Size: j.size, Count: 1, Iters: n, Conns: 1} }
	if p.device == "" {
		p.add(j, rivals, t)
		return
	}
	rivals = append([]rival{
		{cRconnSpin, transport{Kind: onDevice, Addr: p.device, Spin: spinLong}},
		{cRconnPark, transport{Kind: onDevice, Addr: p.device, Spin: parkOnly}},
	}, rivals...)
	timed := contender{name: cTimed, run: func(b *bench, n int) (sample, error) { return b.rsocketRoundTrips(t(n, j)) }}
	more := []contender{rstream(cRstream, t, j), timed, perfLatency(cWriteLat, size)}
	if size == 64 {
		more = append(more, rstream(cBlocking, t, j), perfLatency(cSendLat, size), perfLatency(cSendEvent, size, "-e"))
	}
	p.add(j, rivals, t, more...)
}

func (p *planner) stream(size int) {
	j := job{name: "stream " + bytesText(size), group: gStream, unit: "MiB/s", size: size}
	if size >= 64<<10 {
		j.longer = bulk
	}
	t := func(n int, j job) task {
		return task{Kind: transfer, Size: j.size, Count: max(n, 4), Iters: 1, Conns: 1}
	}
	if p.device == "" {
		p.add(j, p.rivals(), t)
		return
	}
	more := []contender{rstream(cRstream, t, j), perfRate(size)}
	if size >= 64<<10 {
		more = append(more, rstream(cBlocking, t, j))
	}
	p.add(j, p.rivals(), t, more...)
}

func (p *planner) both(size int) {
	j := job{name: "both ways " + bytesText(size), group: gBoth, unit: "MiB/s", size: size, longer: bulk}
	t := func(n int, j job) task { return task{Kind: duplex, Size: j.size, Count: max(n, 4), Conns: 1} }
	if p.device == "" {
		p.add(j, p.rivals(), t)
		return
	}
	p.add(j, p.rivals(), t, perfRate(size, "-b"))
}

func (p *planner) mixed(size int) {
	j := job{name: "mixed " + bytesText(size), group: gMixed, unit: "MiB/s", size: size, longer: bulk}
	t := func(n int, j job) task {
		return task{Kind: transfer, Size: j.size, Count: max(n, 4), Iters: 1, Conns: 1}
	}
	own := transport{Kind: onDevice, Addr: p.device}
	j.contenders = []contender{
		rstream(cRstream, t, j),
		{name: "rstream, rconn", run: func(b *bench, n int) (sample, error) { return b.fromRstream(own, t(n, j)) }},
		{name: "rconn, rstream", run: func(b *bench, n int) (sample, error) { return b.toRstream(own, t(n, j)) }},
	}
	p.jobs = append(p.jobs, j)
}

func (p *planner) file() {
	const size = 16 << 20
	j := job{name: "file", group: gFile, unit: "MiB/s", size: size, longer: bulk}
	t := func(n int, j job) task { return task{Kind: file, Size: j.size, Count: max(n, 1), Conns: 1} }
	if p.device == "" {
		p.add(j, p.rivals(), t)
		return
	}
	p.add(j, p.rivals(), t, perfRate(1<<20))
}

func (p *planner) connects() {
	j := job{name: "connects", group: gConnects, unit: "connects/s"}
	t := func(n int, j job) task { return task{Kind: connects, Size: 1, Count: max(n, 10)} }
	if p.device == "" {
		p.add(j, p.rivals(), t)
		return
	}
	p.add(j, p.rivals(), t, contender{name: cRsocket, run: func(b *bench, n int) (sample, error) { return b.rsocketConnects(t(n, j)) }},
		contender{name: cCmtime, run: func(b *bench, _ int) (sample, error) { return b.cmtime(task{Kind: connects, Size: 1, Count: 100}) }})
}

// many has so many connections that making them anew in every round would take most of the time.
func (p *planner) many(n int) {
	p.keep(job{name: fmt.Sprintf("connections %d", n), group: gFan, unit: "messages/s", size: 64, conns: n,
		kept: task{Kind: fan, Size: 64, Iters: 2, Conns: n}}, p.rivals())
}

func (p *planner) idle() {
	rivals := slices.DeleteFunc(p.rivals(), func(r rival) bool { return r.Kind == onUnix })
	if p.device != "" {
		rivals = append(rivals, rival{cRconn + ", no keepalive", transport{Kind: onDevice, Addr: p.device, NoKeepAlive: true}})
	}
	p.keep(job{name: "idle", group: gIdle, unit: "CPU ms/s", smaller: true, conns: 1000, kept: task{Kind: idle, Conns: 1000}}, rivals)
}

// keep makes contenders of rivals for work on kept connections.
func (p *planner) keep(j job, rivals []rival) {
	for _, r := range rivals {
		j.contenders = append(j.contenders, contender{name: r.name, transport: r.transport})
	}
	p.jobs = append(p.jobs, j)
}

// bytesText is a size as it is written in names: 64B, 1KiB.
func bytesText(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}
