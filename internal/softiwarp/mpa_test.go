package softiwarp

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMPABytes has frames captured between rsockets on Linux's soft-iWARP, without their private data.
func TestMPABytes(t *testing.T) {
	private := bytes.Repeat([]byte{7}, 40)
	for _, c := range []struct {
		f    mpaFrame
		key  string
		want string
	}{
		{
			mpaFrame{flags: mpaEnhanced, revision: 2, ord: 1, private: private}, mpaRequestKey,
			"4d504120494420526571204672616d65 10 02 002c 0000 0001",
		},
		{
			mpaFrame{flags: mpaEnhanced, revision: 2, ird: 1, private: private}, mpaReplyKey,
			"4d504120494420526570204672616d65 10 02 002c 0001 0000",
		},
		{ // a peer-to-peer reply: WRITE is the way
			mpaFrame{flags: mpaEnhanced | mpaCRC, revision: 2, ird: 1, ord: 0, peerToPeer: true, rtr: rtrWrite, private: private},
			mpaReplyKey, "4d504120494420526570204672616d65 50 02 002c 8001 8000",
		},
		{
			mpaFrame{flags: mpaEnhanced, revision: 2, ird: 3, ord: 4, peerToPeer: true, rtr: rtrWrite | rtrRead | rtrSend, private: private},
			mpaRequestKey, "4d504120494420526571204672616d65 10 02 002c c003 c004",
		},
		{
			mpaFrame{flags: mpaCRC, revision: 1, ird: mpaNoDepth, ord: mpaNoDepth, private: private}, mpaRequestKey,
			"4d504120494420526571204672616d65 40 01 0028",
		},
		{ // revision 2 without the enhancement
			mpaFrame{revision: 2, ird: mpaNoDepth, ord: mpaNoDepth, private: private}, mpaRequestKey,
			"4d504120494420526571204672616d65 00 02 0028",
		},
	} {
		want := append(unhex(t, c.want), private...)
		require.Equal(t, want, c.f.append(nil, c.key))
		var f mpaFrame
		r := bytes.NewReader(append(want, "what follows is not the frame's"...))
		require.NoError(t, f.read(r, c.key))
		require.Equal(t, c.f, f)
		require.Equal(t, 31, r.Len(), "read no more than the frame")
	}
}

func TestMPAWrong(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		want  error
	}{
		"reply instead":     {"4d504120494420526570204672616d65 10 02 0004 00000000", errMPAKey},
		"garbage":           {"474554202f20485454502f312e310d0a 0d 0a 0000", errMPAKey},
		"revision 3":        {"4d504120494420526571204672616d65 10 03 0004 00000000", errMPARevision},
		"too long":          {"4d504120494420526571204672616d65 10 02 0201", errMPALength},
		"words missing":     {"4d504120494420526571204672616d65 10 02 0003 000000", errMPAWords},
		"words not at all":  {"4d504120494420526571204672616d65 10 02 0000", errMPAWords},
		"words but too few": {"4d504120494420526571204672616d65 10 02 0001 00", errMPAWords},
	} {
		var f mpaFrame
		require.ErrorIs(t, f.read(bytes.NewReader(unhex(t, c.bytes)), mpaRequestKey), c.want, name)
	}
}

func TestRTRChoice(t *testing.T) {
	for offered, want := range map[rtrKinds]rtrKinds{
		0: rtrWrite, rtrSend: rtrSend, rtrRead: rtrRead, rtrRead | rtrSend: rtrRead, rtrWrite | rtrRead | rtrSend: rtrWrite,
	} {
		require.Equal(t, want, offered.choose())
	}
}

func FuzzMPA(f *testing.F) {
	f.Add((&mpaFrame{flags: mpaEnhanced, revision: 2, private: []byte("hello")}).append(nil, mpaRequestKey))
	f.Add((&mpaFrame{revision: 1}).append(nil, mpaRequestKey))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m mpaFrame
		if m.read(bytes.NewReader(b), mpaRequestKey) != nil {
			return
		}
		require.LessOrEqual(t, len(m.private), mpaMaxPrivate)
		again := m.append(nil, mpaRequestKey)
		require.Equal(t, b[:len(again)], again)
	})
}
