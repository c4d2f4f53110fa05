package ring

import "fmt"

// Message is the 32-bit word that announces what was written: 3 bits of kind, 29 bits of argument. As immediate data
// it travels most significant byte first, in a SEND (iWARP) in little-endian order.
type Message uint32

// MessageSize is the size in bytes of a message in a SEND.
const MessageSize = 4

type kind uint8

const (
	kindData    kind = 0 // argument: bytes appended to the stream
	kindCredit  kind = 4 // low 16 bits of the argument: sequence limit; a table entry may have been written too
	kindIOMap   kind = 6 // a mapped buffer was announced; we offer none
	kindControl kind = 7 // argument: a control code
)

// Control codes. Code 1, keepalive, is never sent as a message by anyone today.
const (
	controlDisconnect = 0
	controlShutdown   = 2
)

const (
	kindShift = 29
	argMask   = 1<<kindShift - 1

	// maxMessage is the most bytes that one message can announce, with all room to spare for signed arithmetic.
	maxMessage = 1 << 28
)

func newMessage(k kind, arg uint32) Message { return Message(uint32(k)<<kindShift | arg&argMask) }

func (m Message) kind() kind  { return kind(m >> kindShift) }
func (m Message) arg() uint32 { return uint32(m) & argMask }

// limit is the sequence limit of a credit message. C peers may set bits above the low 16.
func (m Message) limit() uint16 { return uint16(m) }

// String is for logs.
func (m Message) String() string {
	switch m.kind() {
	case kindData:
		return fmt.Sprintf("DATA %d", m.arg())
	case kindCredit:
		return fmt.Sprintf("CREDIT limit %d", m.limit())
	case kindIOMap:
		return fmt.Sprintf("IOMAP %d", m.arg())
	case kindControl:
		switch m.arg() {
		case controlDisconnect:
			return "DISCONNECT"
		case controlShutdown:
			return "SHUTDOWN"
		}
		return fmt.Sprintf("CONTROL %d", m.arg())
	}
	return fmt.Sprintf("MESSAGE(%#08x)", uint32(m))
}
