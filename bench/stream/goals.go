package main

import (
	"fmt"
	"math"
)

// goal is a bound for a number of a contender, or for its ratio to another one's.
type goal struct {
	text   string
	work   string
	a      string
	b      string // empty: the number itself
	number string
	limit  float64
	most   bool // the limit is an upper one
	parks  bool // and the contender must park at least once per message
}

// goals are for Soft-RoCE in a guest; those whose contenders were not measured do not count.
var goals = []goal{
	{"64 B one way, both spinning, to rstream spinning", "round trip 64B", cRconnSpin, cRstream, nValue, 1.1, true, false},
	{"64 B one way, spin 0, to ib_send_lat with events", "round trip 64B", cRconnPark, cSendEvent, nValue, 1.4, true, true},
	{"1 KiB writes, to rstream", "stream 1KiB", cRconn, cRstream, nValue, 1.5, false, false},
	{"64 KiB writes, to rstream", "stream 64KiB", cRconn, cRstream, nValue, 1.2, false, false},
	{"64 KiB writes, to ib_write_bw", "stream 64KiB", cRconn, cWriteBW, nValue, 0.90, false, false},
	{"1 MiB writes, to rstream", "stream 1MiB", cRconn, cRstream, nValue, 1.1, false, false},
	{"1 MiB writes, to ib_write_bw", "stream 1MiB", cRconn, cWriteBW, nValue, 0.92, false, false},
	{"file to socket, to ib_write_bw", "file", cRconn, cWriteBW, nValue, 0.95, false, false},
	{"CPU per byte, 1 MiB, to rstream -T b", "stream 1MiB", cRconn, cBlocking, nCPUByte, 0.8, true, false},
	{"64 KiB, rstream to rconn, to rstream", "mixed 64KiB", "rstream, rconn", cRstream, nValue, 0.95, false, false},
	{"64 KiB, rconn to rstream, to rstream", "mixed 64KiB", "rconn, rstream", cRstream, nValue, 0.95, false, false},
	{"1 MiB, rstream to rconn, to rstream", "mixed 1MiB", "rstream, rconn", cRstream, nValue, 0.95, false, false},
	{"1 MiB, rconn to rstream, to rstream", "mixed 1MiB", "rconn, rstream", cRstream, nValue, 0.95, false, false},
	{"8 busy connections: difference from an equal share", "share", cRconn, "", nUneven, 0.2, true, false},
	{"connections per second, to C rsocket", "connects", cRconn, cRsocket, nValue, 1, false, false},
	{"1000 idle: CPU of both processes, ms/s", "idle", cRconn, "", nValue, 20, true, false}, // which is what two idle Go processes may use in a guest
	{"1000 idle: threads", "idle", cRconn, "", nThreads, 19, true, false},
	{"1000 idle: KiB pinned per connection", "idle", cRconn, "", nPinned, 256, true, false},
}

// hostGoals are those of the software device beside TCP. They are for hosts: a guest's processors are not.
var hostGoals = []goal{
	{"1 MiB writes, to TCP", "stream 1MiB", cSoftware, cTCP, nValue, 0.95, false, false},
	{"64 KiB writes, to TCP", "stream 64KiB", cSoftware, cTCP, nValue, 0.9, false, false},
	{"64 B round trip, to TCP", "round trip 64B", cSoftware, cTCP, nValue, 1.3, true, false},
	{"net/http requests, to TCP", "http", cSoftware, cTCP, nValue, 0.8, false, false},
	{"64 B round trip: allocations per message", "round trip 64B", cSoftware, "", nAllocs, 0.05, true, false},
	{"64 B writes: allocations per message", "stream 64B", cSoftware, "", nAllocs, 0.05, true, false},
}

// verdict is what became of a goal.
type verdict struct {
	goal
	got  ratio
	pass bool
	note string
}

// judge looks at all goals that can be judged.
func (r *results) judge(goals []goal) (all []verdict) {
	for _, g := range goals {
		a := r.find(g.work, g.a)
		if a == nil || len(a.numbers(g.number)) == 0 {
			continue
		}
		v := verdict{goal: g}
		if g.b == "" {
			x := a.numbers(g.number)
			v.got = ratio{median(x), quantile(x, 0.25), quantile(x, 0.75)}
		} else {
			b := r.find(g.work, g.b)
			if b == nil || len(b.numbers(g.number)) == 0 {
				continue
			}
			v.got = ratioOf(a.numbers(g.number), b.numbers(g.number))
		}
		v.pass = g.holds(v.got.value)
		if g.holds(v.got.low) != g.holds(v.got.high) {
			v.note = "within the spread: it may be otherwise next time"
		}
		if g.parks {
			// Half a percent may find what came while it was on its way to sleep.
			parks, known := a.median(nParks)
			if !known || parks < 0.995 {
				v.pass = false
				v.note = fmt.Sprintf("parks per message %.2f, want 1", parks)
			}
		}
		all = append(all, v)
	}
	return all
}

func (g goal) holds(x float64) bool {
	if math.IsNaN(x) {
		return false
	}
	return g.most && x <= g.limit || !g.most && x >= g.limit
}

// goalsFor are those that fit what was measured.
func (r *results) goalsFor() []goal {
	for i := range r.Outcomes {
		for _, m := range r.Outcomes[i].Results {
			if m.Contender == cRconn || m.Contender == cRstream {
				return goals
			}
		}
	}
	return hostGoals
}

func (r *results) goalTable() table {
	t := table{{"goal", "measured", "quartiles", "wanted", "verdict", ""}}
	for _, v := range r.judge(r.goalsFor()) {
		sign, word := ">=", "MISSED"
		if v.most {
			sign = "<="
		}
		if v.pass {
			word = "PASS"
		}
		t = append(t, []string{
			v.text, figure(v.got.value), figure(v.got.low) + " to " + figure(v.got.high), sign + " " + figure(v.limit), word, v.note,
		})
	}
	return t
}
