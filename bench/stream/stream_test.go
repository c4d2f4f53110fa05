package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	numbers := []float64{40, 10, 30, 20}
	require.Equal(t, 10.0, quantile(numbers, 0))
	require.Equal(t, 25.0, median(numbers))
	require.Equal(t, 17.5, quantile(numbers, 0.25))
	require.Equal(t, 40.0, quantile(numbers, 1))
	require.Equal(t, []float64{40, 10, 30, 20}, numbers, "the rounds must keep their order")
	require.InDelta(t, 1.2, spread(numbers), 1e-9)
	require.Equal(t, 7.0, median([]float64{7}))
}

// Ratios are those of single rounds: what slows both contenders of a round does not count.
func TestRatioPairsRounds(t *testing.T) {
	r := ratioOf([]float64{10, 100, 1000}, []float64{20, 200, 2000})
	require.Equal(t, ratio{0.5, 0.5, 0.5}, r)
	r = ratioOf([]float64{1, 2, 30}, []float64{10, 2, 3})
	require.Equal(t, 1.0, r.value, "0.1, 1, 10")
	require.True(t, math.IsNaN(ratioOf(nil, []float64{1}).value))
}

// A machine that is slower at times is worth a warning, a single slow moment is not.
func TestSpeed(t *testing.T) {
	steady := speed{took: append(slices.Repeat([]float64{20}, fewLooks-1), 90)}
	require.Empty(t, steady.doubt())
	twofold := speed{took: append(slices.Repeat([]float64{20}, fewLooks), slices.Repeat([]float64{40}, fewLooks)...)}
	require.Len(t, twofold.doubt(), 1)
	require.Contains(t, twofold.doubt()[0], "took up to 20 ms in a tenth of all looks, 30 in half of them, 40 and more in another tenth")
	require.Empty(t, (&speed{took: []float64{20, 90}}).doubt(), "too few to tell")

	var s speed
	s.look()
	s.look()
	require.Len(t, s.took, 2)
	require.Greater(t, s.took[0], 0.0)
}

func TestQuantilesOfTimes(t *testing.T) {
	var times []time.Duration
	for i := 1000; i > 0; i-- {
		times = append(times, time.Duration(i)*time.Microsecond)
	}
	points := quantiles(times, 2)
	require.Len(t, points, 200)
	require.InDelta(t, 250, points[100], 5)
	require.InDelta(t, 495, points[198], 5)
	require.Nil(t, quantiles(nil, 1))
	require.Len(t, quantiles(times[:1], 1), 200)
}

func TestParsersOfPrograms(t *testing.T) {
	us, err := microsPerTransfer("name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n" +
		"custom    64      1       10k     1.2m        0.25s      0.04      12.51\n")
	require.NoError(t, err)
	require.Equal(t, 12.51, us)
	for _, bad := range []string{"", "usec/xfer", "rconnect: Connection refused"} {
		_, err = microsPerTransfer(bad)
		require.Error(t, err, bad)
	}

	took, times, err := peerTimes("0.250000\n11.500\n12.250\n")
	require.NoError(t, err)
	require.Equal(t, 250*time.Millisecond, took)
	require.Equal(t, []float64{11.5, 12.25}, times)
	took, times, err = peerTimes("2.5\n")
	require.NoError(t, err)
	require.Equal(t, 2500*time.Millisecond, took)
	require.Empty(t, times)
	for _, bad := range []string{"", "roundtrips: connect: Connection refused", "0.25\n11.5 µs\n"} {
		_, _, err = peerTimes(bad)
		require.Error(t, err, bad)
	}

	row, err := perfRow(" #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n" +
		" 65536      1000             58.96              55.85  		   0.000894\n---\n")
	require.NoError(t, err)
	require.Equal(t, []float64{65536, 1000, 58.96, 55.85, 0.000894}, row)
	row, err = perfRow(" #bytes #iterations    t_min[usec]\n 64      2000          73.61          1068.02      117.27   \t       127.09      \t-nan   \t\t251.44  \t\t841.25 \n")
	require.NoError(t, err)
	require.Len(t, row, 9)
	require.Equal(t, 127.09, row[5])
	_, err = perfRow(" #bytes #iterations\nCouldn't connect to 10.9.0.1:18515\n")
	require.Error(t, err)

	ms, err := totalMillis("step              total ms     max ms     min us  us / conn\n" +
		"create id    :        1.65       0.12       7.00      16.47\nresolve addr :        7.33       5.92    4598.00      73.26\n")
	require.NoError(t, err)
	require.InDelta(t, 8.98, ms, 1e-9)
	_, err = totalMillis("creating id\n")
	require.Error(t, err)
}

func TestSampleOfTask(t *testing.T) {
	rate := task{Kind: transfer, Size: 1 << 20, Count: 8, Iters: 1}.sample(time.Second, 500*time.Millisecond)
	require.Equal(t, 16.0, rate.Numbers[nValue], "both directions count")
	require.InDelta(t, 0.5e9/(16<<20), rate.Numbers[nCPUByte], 1e-9)
	require.Equal(t, 0.5, rate.Numbers[nBusy])
	oneWay := task{Kind: transfer, Size: 64, Count: 1, Iters: 1000}.sample(20*time.Millisecond, 0)
	require.Equal(t, 10.0, oneWay.Numbers[nValue])
	require.NotContains(t, oneWay.Numbers, nCPUMsg, "what is not known is not 0")
	per := task{Kind: connects, Size: 1, Count: 50}.sample(2*time.Second, time.Second)
	require.Equal(t, 25.0, per.Numbers[nValue])
	require.NotContains(t, per.Numbers, nCPUByte)
}

func TestTimesOfSample(t *testing.T) {
	s := task{Kind: transfer, Size: 64, Count: 1, Iters: 1000}.sample(20*time.Millisecond, 0)
	s.setTimes(nil)
	require.NotContains(t, s.Numbers, nMedian, "what is not known is not 0")
	times := make([]float64, 200)
	for i := range times {
		times[i] = float64(i)
	}
	s.setTimes(times)
	require.Equal(t, []float64{100, 198}, []float64{s.Numbers[nMedian], s.Numbers[nP99]})
	require.Equal(t, times, s.Times)
}

func TestScaled(t *testing.T) {
	require.Equal(t, 300, scaled(100, 100*time.Millisecond, 300*time.Millisecond))
	require.Equal(t, 1, scaled(1, time.Hour, time.Millisecond))
	require.Equal(t, 5, scaled(5, 0, time.Second))
}

// outcomeOf has a contender's values, one a round.
func outcomeOf(work, group string, values map[string][]float64, names ...string) outcome {
	o := outcome{Work: work, Group: group, Unit: "MiB/s", Size: 1 << 20}
	for _, name := range names {
		m := measured{Contender: name}
		for _, x := range values[name] {
			m.Rounds = append(m.Rounds, sample{Numbers: map[string]float64{nValue: x}})
		}
		o.Results = append(o.Results, m)
	}
	return o
}

func TestGoals(t *testing.T) {
	r := results{Outcomes: []outcome{outcomeOf("stream 1MiB", gStream, map[string][]float64{
		cRconn: {92, 99, 130}, cRstream: {100, 100, 100}, cWriteBW: {100, 100, 100},
	}, cRconn, cRstream, cWriteBW)}}
	got := map[string]verdict{}
	for _, v := range r.judge(goals) {
		got[v.text] = v
	}
	require.Len(t, got, 2, "goals without figures are not judged: %v", got)
	missed, pass := got["1 MiB writes, to rstream"], got["1 MiB writes, to ib_write_bw"]
	require.False(t, missed.pass)
	require.Contains(t, missed.note, "spread", "0.955 to 1.145 of 1.1")
	require.True(t, pass.pass)
	require.Empty(t, pass.note)
}

func TestGoalOfParks(t *testing.T) {
	r := results{Outcomes: []outcome{outcomeOf("round trip 64B", gRoundTrip, map[string][]float64{
		cRconnPark: {50}, cSendEvent: {50},
	}, cRconnPark, cSendEvent)}}
	require.False(t, r.judge(goals)[0].pass, "parks are not known")
	r.Outcomes[0].Results[0].Rounds[0].Numbers[nParks] = 1.01
	require.True(t, r.judge(goals)[0].pass)
	r.Outcomes[0].Results[0].Rounds[0].Numbers[nParks] = 0.7
	require.False(t, r.judge(goals)[0].pass)
}

// Every goal names work and contenders that are planned.
func TestGoalsArePlanned(t *testing.T) {
	for addr, list := range map[string][]goal{"": hostGoals, "10.9.0.1": goals} {
		planned := map[string]bool{}
		for _, j := range planFor(options{addr: addr}) {
			require.Contains(t, groups, j.group)
			require.Contains(t, about, j.group)
			for _, c := range j.contenders {
				planned[j.name+" "+c.name] = true
				require.Equal(t, j.isKept(), c.run == nil, j.name)
				require.Equal(t, j.isKept(), c.transport.Kind != "", j.name)
			}
		}
		for _, g := range list {
			require.True(t, planned[g.work+" "+g.a], g.text)
			require.True(t, g.b == "" || planned[g.work+" "+g.b], g.text)
		}
	}
}

func TestTables(t *testing.T) {
	r := results{Outcomes: []outcome{outcomeOf("stream 1MiB", gStream, map[string][]float64{
		cRconn: {80, 90, 100}, cRstream: {60, 60, 60},
	}, cRconn, cRstream)}}
	require.Equal(t, table{
		{"", "", "MiB/s", "spread", "to rstream"}, {"1MiB", "rconn", "90.0", "22%", "1.50"}, {"1MiB", "rstream", "60.0", "0%", ""},
	}, r.table(gStream))
	require.Nil(t, r.table(gHTTP))
	var text bytes.Buffer
	r.table(gStream).markdown(&text)
	require.Contains(t, text.String(), "| --- | --- | ---: | ---: | ---: |\n")
	require.Equal(t, []string{"0", "0.012", "1.23", "12.3", "1234", "?"},
		[]string{figure(0.0001), figure(0.0123), figure(1.234), figure(12.34), figure(1234), figure(math.NaN())})
}

func TestDoubts(t *testing.T) {
	o := outcomeOf("http", gHTTP, map[string][]float64{cTCP: {1, 2}, cUnix: {2, 2}}, cTCP, cUnix)
	o.Results[1].Rounds[0].Numbers[nBusy] = 1.99
	r := results{Processors: 2, Outcomes: []outcome{o}}
	notes := r.doubts()
	require.Len(t, notes, 2)
	require.Contains(t, notes[0], "http Go TCP (67 %)")
	require.Contains(t, notes[1], "http Go Unix socket")
}

func TestMergeKeepsWhatIsNotMeasured(t *testing.T) {
	name := filepath.Join(t.TempDir(), "results.json")
	first := results{Outcomes: []outcome{{Work: "http", Group: gHTTP, Head: "then"}, {Work: "stream 1MiB", Group: gStream, Head: "then"}}}
	require.NoError(t, first.keep(name))
	second := results{Outcomes: []outcome{{Work: "http", Group: gHTTP, Head: "now"}}}
	require.NoError(t, second.keep(name))
	require.Equal(t, []outcome{{Work: "stream 1MiB", Group: gStream, Head: "then"}, {Work: "http", Group: gHTTP, Head: "now"}}, second.Outcomes)
}

func TestReplaceSection(t *testing.T) {
	const doc = "a\n<!-- bench guest -->\nold\n<!-- end -->\nb\n<!-- bench host -->\nkept\n<!-- end -->\n"
	got, err := replaceSection(doc, "guest", "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n<!-- bench guest -->\n\nnew\n\n<!-- end -->\nb\n<!-- bench host -->\nkept\n<!-- end -->\n", got)
	_, err = replaceSection(doc, "elsewhere", "new")
	require.Error(t, err)
}

func TestStatusNumbers(t *testing.T) {
	name := filepath.Join("testdata", "status")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	threads, pinned, resident := statusNumbers(string(text))
	require.Equal(t, []int{9, 516 << 10, 2048 << 10}, []int{threads, pinned, resident})
}

func TestUnevenness(t *testing.T) {
	require.Zero(t, unevenness([]int{7, 7, 7}))
	require.Zero(t, unevenness(make([]int, 8)))
	require.InDelta(t, 0.5, unevenness([]int{10, 15, 5}), 1e-9)
	require.InDelta(t, 1, unevenness([]int{0, 2}), 1e-9)
}

func TestTicksAreRound(t *testing.T) {
	require.Equal(t, []float64{0, 20, 40, 60, 80, 100}, axis{from: 0, to: 101}.ticks())
	require.Equal(t, []float64{10, 20, 50, 100}, axis{from: 9, to: 110, log: true}.ticks())
	require.Equal(t, 0.5, roundStep(0.3))
	require.Equal(t, 10.0, roundStep(7))
}

// The page is well formed, and has every plot and every word that is not its own escaped.
func TestPage(t *testing.T) {
	r := results{Head: "here & <now>", Processors: 2}
	for _, j := range planFor(options{addr: "10.9.0.1"}) {
		o := outcome{Work: j.name, Group: j.group, Unit: j.unit, Size: j.size, Conns: j.conns, Head: r.Head}
		for i, c := range j.contenders {
			m := measured{Contender: c.name}
			for round := range 3 {
				s := sample{Numbers: map[string]float64{}, Times: quantiles([]time.Duration{1e4, 2e4, 9e4}, 2)}
				for _, name := range []string{nValue, nMedian, nP99, nCPUByte, nBusy, nThreads} {
					s.Numbers[name] = float64(i + round + 1)
				}
				m.Rounds = append(m.Rounds, s)
			}
			o.Results = append(o.Results, m)
		}
		r.Outcomes = append(r.Outcomes, o)
	}
	name := filepath.Join(t.TempDir(), "page.html")
	require.NoError(t, r.writePage(name))
	page, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Contains(t, string(page), "here &amp; &lt;now&gt;")
	require.NotContains(t, string(page), "NaN")
	require.NotRegexp(t, `(src|href)=|url\(|@import`, string(page), "the page needs nothing from elsewhere")
	require.Equal(t, len(r.plots()), strings.Count(string(page), "<svg "))
	for part := range strings.SplitSeq(string(page), "<svg ") {
		drawing, _, ok := strings.Cut(part, "</svg>")
		if !ok {
			continue
		}
		d := xml.NewDecoder(strings.NewReader("<svg " + drawing + "</svg>"))
		for err == nil {
			_, err = d.Token()
		}
		require.ErrorIs(t, err, io.EOF)
		err = nil
	}
}

// A chart without data draws nothing, and one with a single value does not divide by zero.
func TestChartsOfLittle(t *testing.T) {
	require.Empty(t, chart{}.svg())
	require.Empty(t, bars("", "", nil))
	one := chart{logX: true, logY: true, lines: []line{{name: cTCP, points: []point{{1, 1, 1, 1}}}}}.svg()
	require.NotEmpty(t, one)
	require.NotContains(t, one, "NaN")
	require.NotContains(t, one, "Inf")
}

// The two processes do all work, over plain sockets and the software device.
func TestWorkers(t *testing.T) {
	for _, tr := range []transport{{Kind: onTCP, Addr: "127.0.0.1"}, {Kind: onUnix}, {Kind: onSoftware, Addr: "127.0.0.1"}} {
		for _, k := range []task{
			{Kind: transfer, Size: 64, Count: 1, Iters: 20, Conns: 1},
			{Kind: transfer, Size: 100 << 10, Count: 5, Iters: 2, Conns: 1},
			{Kind: duplex, Size: 100 << 10, Count: 5, Conns: 1},
			{Kind: fan, Size: 64, Iters: 3, Conns: 5},
			{Kind: connects, Size: 1, Count: 3},
			{Kind: requests, Size: 1 << 10, Count: 10, Conns: 2},
			{Kind: file, Size: 3 << 20, Count: 2, Conns: 1},
			{Kind: idle, Conns: 3},
		} {
			t.Run(tr.Kind+" "+k.Kind, func(t *testing.T) {
				p := pair{inProcess(t), inProcess(t), map[string]bool{}}
				addr, err := p.open(tr, k)
				require.NoError(t, err)
				times := 1
				if k.Kind == fan { // connections of many do it again and again
					times = 2
				}
				for range times {
					if k.Kind == idle {
						break
					}
					s, err := p.measure(tr, addr, k)
					require.NoError(t, err)
					require.Positive(t, s.Took)
					require.Positive(t, s.Numbers[nValue])
				}
				require.NoError(t, p.close())
				require.Equal(t, tr.Kind == onSoftware && k.Conns > 0 && k.Kind != requests, len(p.infos) == 1, "settings of rconn")
			})
		}
	}
}

// TestMain lets the test's program be a worker, as it is the executable that startWorker finds.
func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-worker") {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// Contenders with kept connections make all rounds on them. One that fails leaves the others their results.
func TestKeep(t *testing.T) {
	tcp := contender{name: cTCP, transport: transport{Kind: onTCP, Addr: "127.0.0.1"}}
	software := contender{name: cSoftware, transport: transport{Kind: onSoftware, Addr: "127.0.0.1"}}
	broken := contender{name: "broken", transport: transport{Kind: onTCP, Addr: "192.0.2.1"}}
	for _, kept := range []task{{Kind: fan, Size: 64, Iters: 2, Conns: 5}, {Kind: idle, Conns: 5}} {
		t.Run(kept.Kind, func(t *testing.T) {
			b, err := newBench(t.Context(), options{rounds: 3, length: 20 * time.Millisecond, idle: 50 * time.Millisecond})
			require.NoError(t, err)
			defer b.stop()
			j := job{name: kept.Kind, kept: kept, contenders: []contender{broken, software, tcp}}
			r, err := b.measure([]job{j})
			require.NoError(t, err)
			require.Len(t, b.failures, 1)
			require.Contains(t, b.failures[0], "192.0.2.1")
			require.Len(t, r.Settings, 1, "those of rconn")
			results := r.Outcomes[0].Results
			require.Empty(t, results[0].Rounds)
			for _, m := range results[1:] {
				require.Len(t, m.Rounds, 3, m.Contender)
				for _, s := range m.Rounds {
					if kept.Kind == fan {
						require.Positive(t, s.Numbers[nValue], m.Contender)
						require.NotEmpty(t, s.Times, m.Contender)
						continue
					}
					require.GreaterOrEqual(t, s.Took, b.idle)
					if runtime.GOOS == "linux" { // elsewhere they are not known
						require.Greater(t, s.Numbers[nFDs], 0.5, m.Contender) // what came before may just have closed its own
					}
					require.Less(t, s.Numbers[nFDs], 5.0, m.Contender)
					require.Positive(t, s.Numbers[nOpened], m.Contender)
				}
			}
		})
	}
}

// A party that fails in a round ends at once, with all it has; the other goes on with the connections that it has.
func TestPartyFails(t *testing.T) {
	for _, kind := range []string{fan, idle} {
		t.Run(kind, func(t *testing.T) {
			b := &bench{ctx: t.Context(), options: options{length: 20 * time.Millisecond, idle: 20 * time.Millisecond}}
			round := b.alternate
			if kind == idle {
				round = b.watch
			}
			tcp := contender{name: cTCP, transport: transport{Kind: onTCP, Addr: "127.0.0.1"}}
			work := task{Kind: kind, Size: 64, Iters: 2, Conns: 20}
			fails, stays := hold(t.Context(), tcp, work), hold(t.Context(), tcp, work)
			defer fails.kill()
			defer stays.kill()
			require.NoError(t, errors.Join(fails.err, stays.err))
			round(job{}, []*party{fails, stays})
			begin, began := stays.begin, stays.began
			client := fails.pair.client
			fails.pair.server.kill()
			round(job{}, []*party{fails, stays})
			require.Error(t, fails.err)
			require.Len(t, fails.rounds, 1)
			require.NotNil(t, client.cmd.ProcessState, "the other process lives")
			require.NoError(t, stays.err)
			require.Len(t, stays.rounds, 2)
			if kind == idle && runtime.GOOS == "linux" { // what was used before a round is not the round's
				require.Greater(t, stays.began, began)
				require.Greater(t, stays.begin[0].CPUAfter, begin[0].CPUAfter)
			}
			if runtime.GOOS == "linux" {
				u, err := stays.pair.usages()
				require.NoError(t, err)
				require.GreaterOrEqual(t, u[0].FDs-stays.base[0].FDs, 19, "connections were not kept")
			}
		})
	}
}

// A contender that failed has no rounds, and is not tried again: its rounds would be compared with those that others made at other times.
func TestFailedOnce(t *testing.T) {
	b, err := newBench(t.Context(), options{rounds: 3, length: time.Millisecond})
	require.NoError(t, err)
	defer func() { b.stop() }()
	tries := 0
	fails := func(*bench, int) (sample, error) {
		if tries++; tries == 3 {
			return sample{}, errors.New("a bad moment")
		}
		return sample{Took: time.Second}, nil
	}
	fine := func(*bench, int) (sample, error) { return sample{Took: time.Second}, nil }
	r, err := b.measure([]job{{name: "a work", contenders: []contender{{name: "fails", run: fails}, {name: "fine", run: fine}}}})
	require.NoError(t, err)
	require.Equal(t, 3, tries)
	require.Equal(t, []string{"FAILED: a work, fails: a bad moment"}, b.failures)
	require.Empty(t, r.Outcomes[0].Results[0].Rounds)
	require.Len(t, r.Outcomes[0].Results[1].Rounds, 3)
}

// What idle connections use and hold is for a second, and for a connection at one end.
func TestIdleSample(t *testing.T) {
	p := &party{task: task{Kind: idle, Conns: 50}, kernel: 300 << 10, opened: 7,
		base:  [2]usage{{FDs: 10, Pinned: 1 << 20}, {FDs: 12}},
		begin: [2]usage{{CPUAfter: 5 * time.Second}, {CPUAfter: time.Second}}}
	end := [2]usage{
		{CPU: 5*time.Second + 20*time.Millisecond, FDs: 110, Pinned: 11 << 20, Resident: 4 << 20, Threads: 7},
		{CPU: time.Second + 60*time.Millisecond, FDs: 112, Pinned: 10 << 20, Resident: 6 << 20, Threads: 5},
	}
	s := p.idleSample(end, 2*time.Second)
	require.Equal(t, map[string]float64{nValue: 40, nThreads: 7, nFDs: 2, nPinned: 204.8, nResident: 102.4, nKernel: 3, nOpened: 7}, s.Numbers)
	require.Equal(t, 2*time.Second, s.Took)
}

// inProcess is a worker that is a goroutine instead of a process. The pipes are the system's, as a process has them: in one without a buffer
// the end of line behind an answer would wait for who reads on, who waits for the next request to be taken.
func inProcess(t *testing.T) *process {
	requests, to, err := os.Pipe()
	require.NoError(t, err)
	from, replies, err := os.Pipe()
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- work(requests, replies) }()
	t.Cleanup(func() {
		require.NoError(t, to.Close())
		require.NoError(t, <-done)
		require.NoError(t, errors.Join(requests.Close(), from.Close(), replies.Close()))
	})
	return &process{stdin: to, to: json.NewEncoder(to), from: json.NewDecoder(from)}
}
