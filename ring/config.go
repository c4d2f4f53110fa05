package ring

import "fmt"

// Variant is how messages travel. The transport decides it, at both ends alike.
type Variant uint8

// The variants.
const (
	Immediate Variant = iota // InfiniBand, RoCE: message in the immediate data of a write
	Separate                 // iWARP: message in a SEND that follows the write
)

// ReceiveReserve is how many receives are posted beyond the granted credits, for the messages that need none: a C peer can have
// about seven under way.
const ReceiveReserve = 16

// controlReserve is how many messages other than data may be under way. The send queue keeps room for them.
const controlReserve = 4

// tableEntries is the number of entries in our table. C peers understand no other number.
const tableEntries = 2

// TableSize is the size in bytes of the table.
const TableSize = tableEntries * entrySize

// Limits of a Config.
const (
	MinCredits   = 1
	MaxCredits   = 65534 // a 16-bit sequence must tell a full window from an empty one
	MinSendQueue = 2 * controlReserve * 2
	MaxRing      = maxSegment
)

// Config is the shape of a stream and the memory it works on.
type Config struct {
	Variant Variant

	Credits   int // messages the peer may send ahead, MinCredits to MaxCredits
	SendQueue int // entries of the send queue, at least MinSendQueue
	MaxWrite  int // bytes of one write, at least 1; 0: as many as the peer's segment takes

	// Send is the send memory: SendSize(ring bytes, SendQueue) long.
	Send []byte

	// Recv is the receive ring, of an even number of bytes. It is given out in two segments.
	Recv     []byte
	RecvAddr uint64
	RecvRKey uint32

	// Table is the table, zeroed, TableSize bytes at a 16-byte boundary.
	Table     []byte
	TableAddr uint64
	TableRKey uint32
}

// slotSize is what an operation may need beside the send ring: a table entry, or a message.
const slotSize = entrySize

// SendSize is the size of the send memory for a send ring of the given size: the ring, then a slot for each entry of the
// send queue.
func SendSize(ring, sendQueue int) int { return ring + sendQueue*slotSize }

// Receives is the number of receives to keep posted.
func (c *Config) Receives() int { return c.Credits + ReceiveReserve }

func (c *Config) check() error {
	switch {
	case c.Credits < MinCredits || c.Credits > MaxCredits:
		return fmt.Errorf("ring: %d credits, want %d to %d", c.Credits, MinCredits, MaxCredits)
	case c.SendQueue < MinSendQueue:
		return fmt.Errorf("ring: send queue of %d, want at least %d", c.SendQueue, MinSendQueue)
	case len(c.Send) <= c.SendQueue*slotSize:
		return fmt.Errorf("ring: no room for a send ring in %d bytes", len(c.Send))
	case len(c.Recv) < 2 || len(c.Recv)%2 != 0 || len(c.Recv) > MaxRing:
		return fmt.Errorf("ring: receive ring of %d bytes, want an even number up to %d", len(c.Recv), MaxRing)
	case len(c.Table) != TableSize:
		return fmt.Errorf("ring: table of %d bytes, want %d", len(c.Table), TableSize)
	case c.MaxWrite < 0:
		return fmt.Errorf("ring: write limit of %d bytes", c.MaxWrite)
	}
	return nil
}
