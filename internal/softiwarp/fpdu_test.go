package softiwarp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	require.NoError(t, err)
	return b
}

// TestHeaderBytes pins the layout of RFC 5041 and 5040 for each kind of message.
func TestHeaderBytes(t *testing.T) {
	for name, c := range map[string]struct {
		h    header
		want string
	}{
		"write": {
			header{op: opWrite, tagged: true, last: true, payload: 5, stag: 0x01020304, to: 0x1112131415161718},
			"0013 c1 40 01020304 1112131415161718",
		},
		"write, not last": {
			header{op: opWrite, tagged: true, payload: 1428, stag: 1}, "05a2 81 40 00000001 0000000000000000",
		},
		"read request": {
			header{op: opReadRequest, last: true, payload: 28, qn: 1, msn: 1}, "002e 41 41 00000000 00000001 00000001 00000000",
		},
		"read response": {
			header{op: opReadResponse, tagged: true, last: true, stag: 7, to: 8}, "000e c1 42 00000007 0000000000000008",
		},
		"send":        {header{op: opSend, last: true, payload: 4, msn: 2}, "0016 41 43 00000000 00000000 00000002 00000000"},
		"send, part":  {header{op: opSend, payload: 4, msn: 2, mo: 9}, "0016 01 43 00000000 00000000 00000002 00000009"},
		"send inv":    {header{op: opSendInv, last: true, ulp: 0xa, msn: 1}, "0012 41 44 0000000a 00000000 00000001 00000000"},
		"send se":     {header{op: opSendSE, last: true, msn: 1}, "0012 41 45 00000000 00000000 00000001 00000000"},
		"send inv se": {header{op: opSendInvSE, last: true, msn: 1}, "0012 41 46 00000000 00000000 00000001 00000000"},
		"terminate": {
			header{op: opTerminate, last: true, payload: 4, qn: 2, msn: 1}, "0016 41 47 00000000 00000002 00000001 00000000",
		},
		"immediate": {header{op: opImmediate, last: true, payload: 8, msn: 3}, "001a 41 48 00000000 00000000 00000003 00000000"},
		"atomic request": {
			header{op: opAtomicRequest, last: true, payload: 52, qn: 1, msn: 1}, "0046 41 4a 00000000 00000001 00000001 00000000",
		},
		"atomic response": {
			header{op: opAtomicResponse, last: true, payload: 12, qn: 3, msn: 1}, "001e 41 4b 00000000 00000003 00000001 00000000",
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := c.h.append(nil)
			require.Equal(t, unhex(t, c.want), b)
			var h header
			n, f := h.parse(b)
			require.Nil(t, f)
			require.Equal(t, len(b), n)
			require.Equal(t, c.h, h)
			for cut := range b {
				n, f = new(header).parse(b[:cut])
				require.Nil(t, f, cut)
				require.Zero(t, n, cut)
			}
		})
	}
}

func TestTrailer(t *testing.T) {
	for n, pad := range map[int]int{16: 0, 17: 3, 18: 2, 19: 1, 20: 0} {
		require.Equal(t, pad+4, trailerSize(n))
		require.Equal(t, make([]byte, pad+4), appendTrailer(nil, n, false, 0))
	}
	// The check value of CRC-32C, for "123456789", is e3069283. MPA puts the least significant byte first.
	require.Equal(t, uint32(0xe3069283), crcOf([]byte("123456789")))
	b := sealFPDU([]byte("12345678"), 0, true)
	require.Equal(t, crcOf(b[:8]), binary.LittleEndian.Uint32(b[8:]))
	require.True(t, checkCRC(b))
	b[3] ^= 1
	require.False(t, checkCRC(b))
}

func TestRequestBytes(t *testing.T) {
	r := readRequest{sinkSTag: 1, sinkTO: 2, size: 3, srcSTag: 4, srcTO: 5}
	b := r.append(nil)
	require.Equal(t, unhex(t, "00000001 0000000000000002 00000003 00000004 0000000000000005"), b)
	var r2 readRequest
	r2.parse(b)
	require.Equal(t, r, r2)

	a := atomicRequest{op: atomicCmpSwap, id: 1, stag: 2, to: 3, addSwap: 4, addSwapMask: 5, compare: 6, compareMask: 7}
	b = a.append(nil)
	require.Equal(t, unhex(t, "00000002 00000001 00000002 0000000000000003 0000000000000004 0000000000000005"+
		"0000000000000006 0000000000000007"), b)
	require.Len(t, b, atomicRequestSize)
	var a2 atomicRequest
	a2.parse(b)
	require.Equal(t, a, a2)
}

func TestAtomicApply(t *testing.T) {
	const all = ^uint64(0)
	for _, c := range []struct {
		r         atomicRequest
		old, want uint64
	}{
		{atomicRequest{op: atomicFetchAdd, addSwap: 3}, all, 2},
		{atomicRequest{op: atomicFetchAdd, addSwap: 0x0101, addSwapMask: 0x8080}, 0xffff, 0x0000},
		{atomicRequest{op: atomicFetchAdd, addSwap: 0x01, addSwapMask: 0x8080}, 0x10ff, 0x1000},
		{atomicRequest{op: atomicFetchAdd, addSwap: 0x80, addSwapMask: 0x8080}, 0x0080, 0x0000},
		{atomicRequest{op: atomicCmpSwap, compare: 5, compareMask: all, addSwap: 9, addSwapMask: all}, 5, 9},
		{atomicRequest{op: atomicCmpSwap, compare: 5, compareMask: all, addSwap: 9, addSwapMask: all}, 6, 6},
		{atomicRequest{op: atomicCmpSwap, compare: 5, compareMask: 0xf, addSwap: 9, addSwapMask: 0xf0}, 0x35, 0x05},
	} {
		require.Equal(t, c.want, c.r.apply(c.old), "%+v", c)
	}
}

// TestParseFaults has each way in which a header is wrong by itself.
func TestParseFaults(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		want  *fault
	}{
		"length 0":                   {"0000 c140", &faultStart},
		"length below a header":      {"000d c140", &faultStart},
		"send without its header":    {"0011 4143", &faultStart},
		"read request too short":     {"002d 4141", &faultStart},
		"read request too long":      {"002f 4141", &faultStart},
		"terminate without its word": {"0015 4147", &faultStart},
		"immediate of 7 bytes":       {"0019 4148", &faultStart},
		"DDP version, tagged":        {"0010 c240", &faultTaggedVersion},
		"DDP version, untagged":      {"0020 4043", &faultUntaggedVersion},
		"RDMAP version":              {"0020 4103", &faultRDMAPVersion},
		"RDMAP version 2":            {"0020 4183", &faultRDMAPVersion},
		"opcode 14":                  {"0020 414e", &faultOpcode},
		"opcode 15":                  {"0020 414f", &faultOpcode},
		"untagged write":             {"0020 4140", &faultOpcode},
		"tagged send":                {"0020 c143", &faultOpcode},
		"send on queue 1":            {"0016 4143 00000000 00000001 00000001 00000000", &faultQN},
		"send on queue 4":            {"0016 4143 00000000 00000004 00000001 00000000", &faultQN},
		"read on queue 0":            {"002e 4141 00000000 00000000 00000001 00000000", &faultQN},
	} {
		n, f := new(header).parse(unhex(t, c.bytes))
		require.Zero(t, n, name)
		require.Same(t, c.want, f, name)
	}
}

func TestTerminateBytes(t *testing.T) {
	segment := (&header{op: opWrite, tagged: true, last: true, payload: 4, stag: 1, to: 2}).append(nil)
	b := faultTaggedBounds.appendTerminate(nil, append(segment, 1, 2, 3, 4, 0, 0, 0, 0), false)
	require.Equal(t, unhex(t, "0026 4147 00000000 00000002 00000001 00000000"+
		"1101c000 0012 c140 00000001 0000000000000002 00000000"), b)

	request := (&header{op: opReadRequest, last: true, payload: 28, qn: 1, msn: 1}).append(nil)
	request = (&readRequest{size: 1}).append(request)
	b = faultRequestAccess.appendTerminate(nil, request, true)
	require.True(t, checkCRC(b))
	require.Equal(t, unhex(t, "0102e000 002e"), b[20:26])
	require.Equal(t, request[2:], b[26:26+18+28])

	b = faultCRC.appendTerminate(nil, nil, false)
	require.Equal(t, unhex(t, "0016 4147 00000000 00000002 00000001 00000000 20020000 00000000"), b)
}

// TestTerminateLayouts has what Linux's soft-iWARP sends, with the bits in the other order, and RFC 5040's layout.
func TestTerminateLayouts(t *testing.T) {
	for word, want := range map[string]fault{
		// Captured from siw.
		"11000300": {layer: layerDDP, etype: 1, code: 0},
		"11010300": {layer: layerDDP, etype: 1, code: 1},
		"01000300": {layer: layerDDP, etype: 0, code: 0},
		"21010300": {layer: layerDDP, etype: 2, code: 1},
		"21030300": {layer: layerDDP, etype: 2, code: 3},
		"21060000": {layer: layerDDP, etype: 2, code: 6},
		"20050000": {layer: layerRDMAP, etype: 2, code: 5},
		"20060000": {layer: layerRDMAP, etype: 2, code: 6},
		"10000700": {layer: layerRDMAP, etype: 1, code: 0},
		"20070300": {layer: layerRDMAP, etype: 2, code: 7},
		"02030000": {layer: layerLLP, etype: 0, code: 3},
		// RFC 5040.
		"1101c000": {layer: layerDDP, etype: 1, code: 1},
		"1204c000": {layer: layerDDP, etype: 2, code: 4},
		"0102e000": {layer: layerRDMAP, etype: 1, code: 2},
		"20020000": {layer: layerLLP, etype: 0, code: 2},
		"02050000": {layer: layerRDMAP, etype: 2, code: 5},
		"12060000": {layer: layerDDP, etype: 2, code: 6},
	} {
		f, raw := parseTerminate(unhex(t, word))
		require.Equal(t, want, f, word)
		require.NotZero(t, raw)
	}
}

func FuzzFPDU(f *testing.F) {
	for op := range uint8(opCount) {
		h := header{op: op, tagged: formats[op].tagged, qn: formats[op].qn, payload: formats[op].min, last: true, msn: 1}
		f.Add(sealFPDU(append(h.append(nil), make([]byte, h.payload)...), 0, true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h header
		n, fault := h.parse(b)
		switch {
		case fault != nil:
			require.Zero(t, n)
			// Whatever it was, there is something to tell the peer.
			message := fault.appendTerminate(nil, b, true)
			require.True(t, checkCRC(message))
			require.Zero(t, len(message)%4)
			_, fault = h.parse(message)
			require.Nil(t, fault)
		case n > 0:
			require.Equal(t, h.size(), n)
			require.LessOrEqual(t, h.total(), maxFPDU)
			require.Zero(t, h.total()%4)
			again := h.append(nil)
			require.Equal(t, b[:2], again[:2])
			require.Equal(t, b[4:n], again[4:])
		}
	})
}

func FuzzTerminate(f *testing.F) {
	f.Add([]byte{0x11, 0, 3, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= terminateSize {
			f, _ := parseTerminate(b)
			require.NotEmpty(t, f.Error())
		}
	})
}

// TestParseRandom is the fuzz target's idea for every test run.
func TestParseRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		b := make([]byte, r.IntN(80))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		if len(b) > 3 && r.IntN(2) == 0 {
			b[0], b[2], b[3] = 0, 0x41|b[2]&0x80, 0x40|b[3]&0x0f
		}
		var h header
		if n, f := h.parse(b); n > 0 && f == nil {
			require.LessOrEqual(t, n, len(b))
			require.Less(t, h.op, uint8(opCount))
		}
	}
}
