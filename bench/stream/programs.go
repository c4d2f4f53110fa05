package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The contenders that are C programs.

// port is another one each time: what a program leaves behind does not hinder the next.
func (b *bench) port() string {
	b.ports++
	return strconv.Itoa(20000 + b.ports%10000)
}

// rstream makes a contender of rstream, with the options in its name.
func rstream(name string, t func(int, job) task, j job) contender {
	return contender{name: name, run: func(b *bench, n int) (sample, error) {
		return b.rstream(strings.Fields(name)[1:], t(n, j))
	}}
}

// rstreamArgs are its arguments for a task.
func rstreamArgs(port string, t task, more []string) []string {
	return append([]string{"-p", port, "-S", strconv.Itoa(t.Size), "-C", strconv.Itoa(t.Count), "-I", strconv.Itoa(t.Iters)}, more...)
}

func (b *bench) rstreamOnce(more []string, t task) (us float64, cpu time.Duration, err error) {
	args := rstreamArgs(b.port(), t, more)
	out, cpu, err := both(b.ctx, append([]string{"rstream", "-b", b.addr}, args...), append([]string{"rstream", "-s", b.addr}, args...))
	if err != nil {
		return 0, 0, err
	}
	us, err = microsPerTransfer(out)
	return us, cpu, err
}

func (b *bench) rstream(more []string, t task) (sample, error) {
	if !slices.Contains(more, "-T") {
		// It spins, also while it waits for the other one to start: what it used tells nothing.
		us, _, err := b.rstreamOnce(more, t)
		return t.sample(micros(us*float64(t.messages())), 0), err
	}
	base, err := b.startCPU(more)
	if err != nil {
		return sample{}, err
	}
	us, cpu, err := b.rstreamOnce(more, t)
	return t.sample(micros(us*float64(t.messages())), max(0, cpu-base)), err
}

func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

// startCPU is what two rstream use to start, connect, send a message each and end. It is taken off what they use otherwise.
func (b *bench) startCPU(more []string) (time.Duration, error) {
	key := strings.Join(more, " ")
	if cpu, ok := b.starts[key]; ok {
		return cpu, nil
	}
	var all []float64
	for range 3 {
		_, cpu, err := b.rstreamOnce(more, task{Kind: transfer, Size: 64, Count: 1, Iters: 1})
		if err != nil {
			return 0, err
		}
		all = append(all, float64(cpu))
	}
	b.starts[key] = time.Duration(median(all))
	return b.starts[key], nil
}

// fromRstream has rstream connect to a worker.
func (b *bench) fromRstream(tr transport, t task) (sample, error) {
	r, err := b.pair.server.call(request{Op: "serve", Transport: tr, Task: t})
	if err != nil {
		return sample{}, err
	}
	port := r.Addr[strings.LastIndexByte(r.Addr, ':')+1:]
	p, err := untilServed(b.ctx, append([]string{"rstream", "-s", b.addr}, rstreamArgs(port, t, nil)...), time.Minute)
	_, err2 := b.pair.server.call(request{Op: "close"})
	if err = errors.Join(err, err2); err != nil {
		return sample{}, err
	}
	us, err := microsPerTransfer(p.out.String())
	return t.sample(micros(us*float64(t.messages())), 0), err
}

// toRstream has a worker connect to rstream.
func (b *bench) toRstream(tr transport, t task) (sample, error) {
	port := b.port()
	p, err := startProgram(b.ctx, append([]string{"rstream", "-b", b.addr}, rstreamArgs(port, t, nil)...))
	if err != nil {
		return sample{}, err
	}
	q := request{Op: "open", Transport: tr, Addr: b.addr + ":" + port, Task: t}
	for range 100 {
		time.Sleep(20 * time.Millisecond)
		if _, err = b.pair.client.call(q); err == nil {
			break
		}
		_, _ = b.pair.client.call(request{Op: "close"})
	}
	var r reply
	if err == nil {
		q.Op = "run"
		r, err = b.pair.client.call(q)
	}
	_, err2 := b.pair.client.call(request{Op: "close"})
	err3 := p.wait(5 * time.Second)
	return t.sample(r.Took, 0), errors.Join(err, err2, err3)
}

// perf runs a program of perftest n times its operation, and returns its row of numbers.
func (b *bench) perf(name string, size, n int, more []string) ([]float64, error) {
	args := append([]string{name, "-F", "-d", b.device, "-x", b.gid, "-p", b.port(), "-s", strconv.Itoa(size), "-n", strconv.Itoa(n)}, more...)
	out, _, err := both(b.ctx, args, append(args[:len(args):len(args)], b.addr))
	if err != nil {
		return nil, err
	}
	return perfRow(out)
}

// perfLatency is a program that tells times: iterations, then least, most, typical, mean, deviation, p99, p99.9, in µs one way.
func perfLatency(name string, size int, more ...string) contender {
	program, _, _ := strings.Cut(name, " ")
	return contender{name: name, run: func(b *bench, n int) (sample, error) {
		row, err := b.perf(program, size, max(n, 100), more)
		if err == nil && len(row) < 9 {
			err = fmt.Errorf("%s printed %d numbers, want 9", program, len(row))
		}
		if err != nil {
			return sample{}, err
		}
		s := task{Kind: transfer, Size: size, Count: 1, Iters: int(row[1])}.sample(micros(row[5]*2*row[1]), 0)
		s.Numbers[nMedian], s.Numbers[nP99] = row[4], row[7]
		return s, nil
	}}
}

// perfRate is ib_write_bw: iterations, then the highest and the mean rate in MiB/s.
func perfRate(size int, more ...string) contender {
	name := strings.Join(append([]string{cWriteBW}, more...), " ")
	return contender{name: name, run: func(b *bench, n int) (sample, error) {
		if size >= 1<<20 {
			n = min(n, 1000)
		}
		row, err := b.perf(cWriteBW, size, max(n, 10), more)
		if err == nil && row[3] == 0 { // seen once in some thousand runs
			row, err = b.perf(cWriteBW, size, max(n, 10), more)
		}
		if err == nil && row[3] == 0 {
			err = fmt.Errorf("%s gives a rate of 0", name)
		}
		if err != nil {
			return sample{}, err
		}
		took := row[1] * float64(size) / (row[3] * (1 << 20))
		return sample{Took: micros(took * 1e6), Numbers: map[string]float64{nValue: row[3]}}, nil
	}}
}

// peer runs a program of testbed/peers at both ends; the numbers are its last arguments.
func (b *bench) peer(name string, numbers ...int) (took time.Duration, times []float64, cpu time.Duration, err error) {
	if b.peers == "" {
		return 0, nil, 0, fmt.Errorf("-peers must name the folder with the program %s, of testbed/peers", name)
	}
	program := filepath.Join(b.peers, name)
	args := []string{b.addr, b.port()}
	for _, n := range numbers {
		args = append(args, strconv.Itoa(n))
	}
	out, cpu, err := both(b.ctx, append([]string{program, "listen"}, args...), append([]string{program, "dial"}, args...))
	if err != nil {
		return 0, nil, 0, err
	}
	took, times, err = peerTimes(out)
	return took, times, cpu, err
}

func (b *bench) rsocketConnects(t task) (sample, error) {
	took, _, cpu, err := b.peer("connects", t.Count)
	return t.sample(took, cpu), err
}

// rsocketRoundTrips spins as rstream does: what it used tells nothing.
func (b *bench) rsocketRoundTrips(t task) (sample, error) {
	took, times, _, err := b.peer("roundtrips", t.Size, t.Iters)
	s := t.sample(took, 0)
	s.setTimes(times)
	return s, err
}

func (b *bench) cmtime(t task) (sample, error) {
	port := b.port()
	server, err := startProgram(b.ctx, []string{"cmtime", "-b", b.addr, "-p", port})
	if err != nil {
		return sample{}, err
	}
	defer server.kill() // it does not end by itself
	client, err := untilServed(b.ctx, []string{"cmtime", "-s", b.addr, "-p", port, "-c", strconv.Itoa(t.Count)}, 20*time.Second)
	if err != nil {
		return sample{}, err
	}
	ms, err := totalMillis(client.out.String())
	return t.sample(micros(ms*1e3), 0), err
}
