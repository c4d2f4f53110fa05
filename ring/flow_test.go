package ring

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// pairOf is two connected ends of one shape, with total bytes to go each way.
func pairOf(t testing.TB, cfg Config, sendRing, recvRing, total int) (a, b *end) {
	a, b = newEnd(t, "a", cfg, sendRing, recvRing), newEnd(t, "b", cfg, sendRing, recvRing)
	a.toWrite, b.toWrite = total, total
	connect(t, a, b)
	return a, b
}

// settle does all that can happen without the users of the ends, completions too unless they are late, and checks each step.
func settle(t testing.TB, late bool, ends ...*end) {
	for moved := true; moved; {
		moved = false
		for _, e := range ends {
			moved = e.repostAll() || moved
			for _, action := range []func(*end, *rand.Rand) (bool, error){(*end).doPost, (*end).doDeliver, (*end).doReceive, (*end).doAck} {
				if late && len(e.acks) > 0 && len(e.posted) == 0 && len(e.arrived) == 0 {
					break // all that is left is the completions
				}
				ok, err := action(e, nil)
				require.NoError(t, err)
				require.NoError(t, e.check())
				moved = moved || ok
			}
		}
	}
}

func (e *end) repostAll() bool {
	n := e.Owed()
	e.receives += n
	e.Reposted(n)
	return n > 0
}

var variants = map[string]Variant{"immediate": Immediate, "separate": Separate}

// A reader takes one byte whenever nothing else can move, for all small rings and sizes of writes: there is never more under way than
// was granted.
//
// fault: DATA-2
func TestSlowReader(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			for recvRing := 2; recvRing <= 24; recvRing += 2 {
				for size := 1; size <= recvRing+1; size++ {
					cfg := Config{Variant: variant, Credits: 1 + size%9, SendQueue: MinSendQueue}
					a, b := pairOf(t, cfg, 2*recvRing, recvRing, 5*recvRing)
					b.toWrite = 0
					b.Shutdown()
					for !a.finished() || !b.finished() {
						wrote, err := a.writeSome(size)
						require.NoError(t, err)
						settle(t, false, a, b)
						require.LessOrEqual(t, a.send.posted-b.recv.consumed, uint64(recvRing), "ring %d, writes of %d", recvRing, size)
						read := false
						if !wrote {
							read, err = b.readSome(1)
							require.NoError(t, err)
						}
						require.True(t, wrote || read || a.finished() && b.finished(), "stuck: ring %d, writes of %d", recvRing, size)
					}
				}
			}
		})
	}
}

// Both ends have written until neither can, then both readers take one byte at a time: giving space and credits back needs none.
//
// fault: FLOW-6
func TestCreditsComeBackWithoutCredits(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			for _, credits := range []int{1, 2, 3, 16, 200} {
				for _, recvRing := range []int{2, 4, 64} {
					for _, maxWrite := range []int{0, 1} { // rings full, or credits used up
						cfg := Config{Variant: variant, Credits: credits, SendQueue: MinSendQueue, MaxWrite: maxWrite}
						a, b := pairOf(t, cfg, 32, recvRing, 10*recvRing)
						fill := func() {
							for moved := true; moved; {
								settle(t, false, a, b)
								wroteA, err := a.writeSome(32)
								require.NoError(t, err)
								wroteB, err := b.writeSome(32)
								require.NoError(t, err)
								moved = wroteA || wroteB
							}
						}
						fill()
						for _, e := range []*end{a, b} {
							require.NotZero(t, e.Unposted(), "not held up")
							full := e.recv.received-e.recv.consumed == uint64(recvRing)
							require.True(t, full || e.peer.send.window() <= e.peer.send.reserve, "neither space nor credits are used up")
						}
						for !a.finished() || !b.finished() {
							readA, err := a.readSome(1)
							require.NoError(t, err)
							readB, err := b.readSome(1)
							require.NoError(t, err)
							require.True(t, readA || readB, "stuck: %d credits, ring %d", credits, recvRing)
							fill()
						}
					}
				}
			}
		})
	}
}

// credits wants the credits of the direction towards the peer to be where they should be, and all of them: with the sender, with messages
// under way, with messages not made up for, and with limits under way.
func (e *end) credits() error {
	p := e.peer
	data := 0
	if e.hasHalf && e.half.kind() == kindData {
		data++
	}
	for _, op := range e.posted {
		if op.Kind != Write && op.Msg.kind() == kindData {
			data++
		}
	}
	for _, a := range p.arrived {
		if a.m.kind() == kindData {
			data++
		}
	}
	newest := e.send.limit // the newest limit that the receiver has let go
	for _, a := range e.arrived {
		if a.m.kind() == kindCredit {
			newest = a.m.limit()
		}
	}
	for _, op := range p.posted {
		if op.Kind != Write && op.Msg.kind() == kindCredit {
			newest = op.Msg.limit()
		}
	}
	if p.hasHalf && p.half.kind() == kindCredit {
		newest = p.half.limit()
	}
	used := int(p.recv.credits - (p.recv.granted - p.recv.seq))
	sum := int(e.send.window()) + data + used + int(newest-e.send.limit)
	if sum != p.cfg.Credits || newest != p.recv.granted {
		return fmt.Errorf("credits: %d to send, %d under way, %d used, %d granted, of %d; limit %d, granted %d",
			e.send.window(), data, used, newest-e.send.limit, p.cfg.Credits, newest, p.recv.granted)
	}
	return nil
}

// failures are what may go wrong without an end of the connection, or that ends it before it has changed anything.
var failures = []func(*testing.T, *rand.Rand, *end){
	// A Write that fails, at its deadline, takes back what was not posted.
	func(t *testing.T, r *rand.Rand, e *end) {
		if e.written < e.toWrite {
			e.written -= e.Withdraw(1 << 30)
		}
	},
	// A completion of something else.
	func(t *testing.T, r *rand.Rand, e *end) {
		require.False(t, e.Completed(e.send.queue.posted+r.Uint64N(100)))
		if done := e.send.queue.done; done > 0 {
			require.False(t, e.Completed(r.Uint64N(done)))
		}
	},
	// A message that is refused takes and gives none.
	func(t *testing.T, r *rand.Rand, e *end) {
		c := e.clone()
		if c.Received(Message(r.Uint32()), r.IntN(20)) != nil {
			require.NoError(t, c.credits())
		}
	},
	// A sign of life is asked for, perhaps in vain.
	func(t *testing.T, r *rand.Rand, e *end) {
		var op Op
		if e.Probe(&op) {
			e.posted = append(e.posted, op)
		}
	},
}

// fault: FLOW-7
func TestCreditsAreConserved(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for round := range 60 {
		cfg := Config{Variant: Variant(round % 2), Credits: 1 + r.IntN(20), SendQueue: MinSendQueue + r.IntN(20), MaxWrite: r.IntN(10)}
		a, b := pairOf(t, cfg, 1+r.IntN(50), 2*(1+r.IntN(30)), 500)
		for idle := 0; !a.finished() || !b.finished(); idle++ {
			e := []*end{a, b}[r.IntN(2)]
			if r.IntN(10) == 0 {
				failures[r.IntN(len(failures))](t, r, e)
			}
			moved, err := actions[r.IntN(len(actions))](e, r)
			if moved {
				idle = 0
			}
			if err = errors.Join(err, a.credits(), b.credits()); err != nil || idle > 5000 {
				t.Fatalf("round %d, %d steps without a move: %v", round, idle, err)
			}
		}
	}
}

// The peer's credits and segments come before the completions of what we sent, which come as late as they can. The device may read
// the memory of a request until then, so it stays as it was.
//
// fault: FLOW-9, DATA-8
func TestCreditBeforeCompletion(t *testing.T) {
	for name, variant := range variants {
		t.Run(name, func(t *testing.T) {
			const recvRing = 8
			cfg := Config{Variant: variant, Credits: 10, SendQueue: 64}
			a, b := pairOf(t, cfg, 100, recvRing, 3000)
			type request struct {
				Op
				payload []byte
			}
			inFlight := map[*end][]request{}
			most := uint64(0)
			for steps := 0; !a.finished() || !b.finished(); steps++ {
				require.Less(t, steps, 100_000, "stuck")
				moved := false
				for _, e := range []*end{a, b} {
					e.repostAll()
					for _, action := range []func(*end, *rand.Rand) (bool, error){nil, (*end).doDeliver, (*end).doReceive} {
						ok, err := false, error(nil)
						if action != nil {
							ok, err = action(e, nil)
						} else if ok, err = e.doPost(nil); ok {
							op := e.posted[len(e.posted)-1]
							inFlight[e] = append(inFlight[e], request{op, bytes.Clone(e.sendMemory(&op)[op.Off:][:op.Len])})
						}
						require.NoError(t, err)
						moved = moved || ok
					}
					for _, action := range []func(int) (bool, error){e.writeSome, e.readSome} {
						ok, err := action(7)
						require.NoError(t, err)
						moved = moved || ok
					}
					most = max(most, e.send.posted-e.send.acked)
				}
				if moved {
					continue
				}
				for _, e := range []*end{a, b} { // only now
					if len(e.acks) == 0 {
						continue
					}
					seq := e.acks[0]
					for len(inFlight[e]) > 0 && inFlight[e][0].Seq <= seq {
						rq := inFlight[e][0]
						require.Equal(t, rq.payload, e.sendMemory(&rq.Op)[rq.Off:][:rq.Len], "memory of %v changed before its completion", rq.Op)
						inFlight[e] = slices.Delete(inFlight[e], 0, 1)
					}
					_, err := e.doAck(nil)
					require.NoError(t, err)
				}
			}
			require.Greater(t, most, uint64(recvRing), "credits did not come before completions")
		})
	}
}
