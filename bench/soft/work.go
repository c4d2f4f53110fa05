package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"time"
)

// kind is what the other process does.
type kind uint32

const (
	sink kind = iota // takes what comes
	echo             // sends every message back
)

// work is something to measure.
type work struct {
	name    string
	kind    kind
	size    int
	unit    string
	digits  int
	rate    func(ops int, took time.Duration, size int) float64
	goal    float64 // of the ratio to TCP
	smaller bool    // is better
}

var works = []work{
	{"1 MiB writes", sink, 1 << 20, "MB/s", 0, bytesRate, 0.90, false},
	{"64 KiB writes", sink, 64 << 10, "MB/s", 0, bytesRate, 0.85, false},
	{"64 B round trip", echo, 64, "µs", 1, roundTrip, 1.4, true},
	{"64 B messages", sink, 64, "1000/s", 0, messageRate, 0.6, false},
}

func bytesRate(ops int, took time.Duration, size int) float64 {
	return float64(ops) * float64(size) / took.Seconds() / 1e6
}

func roundTrip(ops int, took time.Duration, _ int) float64 {
	return took.Seconds() * 1e6 / float64(ops)
}

func messageRate(ops int, took time.Duration, _ int) float64 {
	return float64(ops) / took.Seconds() / 1e3
}

// The request is kind and size; the report, sent after the end of the stream, is the number of bytes taken and of objects
// allocated meanwhile.
const (
	requestSize = 8
	reportSize  = 16
)

// run does the work for a while on a new connection.
func (w work) run(p *process, length time.Duration) (result, error) {
	c, err := p.dial()
	if err != nil {
		return result{}, err
	}
	defer c.Close()
	request := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(w.kind)), uint32(w.size))
	if _, err := c.Write(request); err != nil {
		return result{}, err
	}
	buf := make([]byte, w.size)
	before := mallocs()
	start := time.Now()
	ops := 0
	for time.Since(start) < length {
		for range 1 + 64<<10/w.size/16 { // the clock is not free
			if _, err := c.Write(buf); err != nil {
				return result{}, err
			}
			ops++
			if w.kind == echo {
				if _, err := io.ReadFull(c, buf); err != nil {
					return result{}, err
				}
			}
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return result{}, err
	}
	report := make([]byte, reportSize)
	if _, err := io.ReadFull(c, report); err != nil {
		return result{}, err
	}
	took := time.Since(start)
	objects := mallocs() - before + binary.BigEndian.Uint64(report[8:])
	if got := binary.BigEndian.Uint64(report); got != uint64(ops)*uint64(w.size) {
		return result{}, errors.New("bytes were lost")
	}
	return result{w.rate(ops, took, w.size), float64(objects) / float64(ops)}, nil
}

// answer is the other process's part.
func answer(c net.Conn) error {
	defer c.Close()
	request := make([]byte, requestSize)
	if _, err := io.ReadFull(c, request); err != nil {
		return err
	}
	k, size := kind(binary.BigEndian.Uint32(request)), int(binary.BigEndian.Uint32(request[4:]))
	if k == sink {
		size = max(size, 64<<10)
	}
	buf := make([]byte, size)
	before := mallocs()
	var taken uint64
	for {
		n, err := c.Read(buf)
		taken += uint64(n)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if k == echo {
			if _, err := c.Write(buf[:n]); err != nil {
				return err
			}
		}
	}
	_, err := c.Write(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, taken), mallocs()-before))
	return err
}

func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
