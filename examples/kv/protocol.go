package main

import (
	"encoding/binary"
	"fmt"
)

// A message is a header, and a value where there is one to bring: with a PUT, and with the answer to a GET.
//
//	0   number of the request, which the answer repeats
//	8   operation, or in an answer 1 if there was a value
//	16  key
//	24  value
const (
	headerSize = 24
	valueSize  = 104
	slotSize   = headerSize + valueSize // of the memory for one message
)

const (
	opGet = iota
	opPut
)

// message is a slot's memory.
type message []byte

func (m message) number() uint64 { return binary.BigEndian.Uint64(m) }
func (m message) op() uint64     { return binary.BigEndian.Uint64(m[8:]) }
func (m message) key() uint64    { return binary.BigEndian.Uint64(m[16:]) }
func (m message) value() []byte  { return m[headerSize:] }

func (m message) setHeader(number, op, key uint64) {
	binary.BigEndian.PutUint64(m, number)
	binary.BigEndian.PutUint64(m[8:], op)
	binary.BigEndian.PutUint64(m[16:], key)
}

// fillValue makes the value that a key has at a version, so that a reader can tell whether it got the right one.
func fillValue(b []byte, key, version uint64) {
	x := key*0x9e3779b97f4a7c15 ^ version
	for i := 0; i < valueSize; i += 8 {
		x = x*6364136223846793005 + 1442695040888963407
		binary.BigEndian.PutUint64(b[i:], x)
	}
}

// checkValue compares.
func checkValue(b []byte, key, version uint64) error {
	var want [valueSize]byte
	fillValue(want[:], key, version)
	if string(b) != string(want[:]) {
		return fmt.Errorf("key %d has not the value of version %d", key, version)
	}
	return nil
}

// A server tells a client with its consent how many requests the client may have outstanding, and a number of its own, whose keys
// nobody else PUTs.
type welcome struct{ credits, client uint32 }

func (w welcome) bytes() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, w.credits), w.client)
}

func (w *welcome) parse(b []byte) error {
	if len(b) < 8 {
		return fmt.Errorf("%d bytes of private data, want 8: the peer is no kv server", len(b))
	}
	w.credits, w.client = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	return nil
}
