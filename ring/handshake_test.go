package ring

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// What a default C peer sends.
const cHandshake = "01 02 0180 00000000 0000625000003000 00001001 00000002 00007f111a8c1000 00001002 00010000"

func TestHandshakeOfCPeer(t *testing.T) {
	want := Handshake{
		Credits: 384, TableAddr: 0x625000003000, TableRKey: 0x1001, TableEntries: 2,
		Data: Segment{Addr: 0x7f111a8c1000, RKey: 0x1002, Len: 65536},
	}
	b := unhex(t, cHandshake)
	for _, padding := range []int{0, 16, 156} {
		got, err := ParseHandshake(append(b[:len(b):len(b)], make([]byte, padding)...))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.Equal(t, b, want.Append(nil))
}

func TestHandshakeRefused(t *testing.T) {
	set := func(at int, hex string) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[at:], unhex(t, hex)); return b }
	}
	for name, change := range map[string]func([]byte) []byte{
		"empty":               func([]byte) []byte { return nil },
		"one byte short":      func(b []byte) []byte { return b[:HandshakeSize-1] },
		"zeros (not rsocket)": func(b []byte) []byte { clear(b); return b },
		"version 2":           set(0, "02"),
		"no credits":          set(2, "0000"),
		"table of one":        set(20, "00000001"),
		"table of 65":         set(20, "00000041"),
		"table wraps":         set(8, "ffffffffffffffff"),
		"empty segment":       set(36, "00000000"),
		"huge segment":        set(36, "40000001"),
		"segment wraps":       set(24, "ffffffffffffff00"),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHandshake(change(unhex(t, cHandshake)))
			require.ErrorAs(t, err, new(*ProtocolError))
		})
	}
}

// fault: CONN-6
func FuzzParseHandshake(f *testing.F) {
	f.Add(unhex(f, cHandshake))
	f.Add(make([]byte, 196))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHandshake(b)
		if err != nil {
			require.ErrorAs(t, err, new(*ProtocolError))
			return
		}
		again, err := ParseHandshake(h.Append(nil))
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func TestMessages(t *testing.T) {
	for m, text := range map[Message]string{
		0x00000001: "DATA 1", 0x00010000: "DATA 65536", 0x80000180: "CREDIT limit 384", 0x80010080: "CREDIT limit 128",
		0xC0000003: "IOMAP 3", 0xE0000000: "DISCONNECT", 0xE0000001: "CONTROL 1", 0xE0000002: "SHUTDOWN", 0x20000001: "MESSAGE(0x20000001)",
	} {
		require.Equal(t, text, m.String())
	}
	require.Equal(t, Message(0x00010000), newMessage(kindData, 65536))
	require.Equal(t, Message(0xE0000002), newMessage(kindControl, controlShutdown))
}
