//go:build real

package servers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"

	"github.com/rconn/rdma/compat"
)

// A caller makes requests of one kind, each of them checked.
type caller func(ctx context.Context, i int) error

// callers makes them for the rows whose clients are killed, with what ends them in order.
var callers = map[string]func(d *compat.Dialer, addr string) (caller, func(), error){
	"net/http 1.1": func(d *compat.Dialer, addr string) (caller, func(), error) { return callHTTP(d, addr, 1) },
	"net/http h2c": func(d *compat.Dialer, addr string) (caller, func(), error) { return callHTTP(d, addr, 2) },
	"gRPC": func(d *compat.Dialer, addr string) (caller, func(), error) {
		cc, err := grpc.NewClient("passthrough:///"+addr, grpc.WithContextDialer(d.DialAddr), grpc.WithTransportCredentials(insecure.NewCredentials()))
		return func(ctx context.Context, i int) error {
			size := requestSize(i)
			resp, err := testgrpc.NewTestServiceClient(cc).UnaryCall(ctx, &testgrpc.SimpleRequest{
				Payload: interop.ClientNewPayload(testgrpc.PayloadType_COMPRESSABLE, size), ResponseSize: int32(size),
			})
			if err == nil && len(resp.Payload.Body) != size {
				err = fmt.Errorf("%d bytes of %d", len(resp.Payload.Body), size)
			}
			return err
		}, func() { cc.Close() }, err
	},
}

func callHTTP(d *compat.Dialer, addr string, major int) (caller, func(), error) {
	tr := compat.Transport(d)
	tr.MaxIdleConnsPerHost = 8
	tr.Protocols = new(http.Protocols)
	tr.Protocols.SetHTTP1(major == 1)
	tr.Protocols.SetUnencryptedHTTP2(major == 2)
	v := visitor{url: "http://" + addr, client: &http.Client{Transport: tr}, major: major}
	return func(_ context.Context, i int) error {
		n := requestSize(i)
		if i%2 == 0 {
			return v.get(fmt.Sprint("/noise?n=", n), noise(uint64(n), n))
		}
		body := noise(uint64(n), n)
		return v.hash(body, bytes.NewReader(body))
	}, tr.CloseIdleConnections, nil
}

// requestSize has many small ones and some that take their time.
func requestSize(i int) int {
	if i%10 == 0 {
		return 200_000
	}
	return 1 + i%500
}

// callersProgram runs a caller, eight requests at a time, until it is killed, and prints a byte for each answer.
func callersProgram() {
	d := dialer(links[1])
	call, _, err := callers[os.Getenv("COMPAT_CALLER")](d, os.Getenv("COMPAT_ADDR"))
	var next atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for err == nil {
				if err := call(context.Background(), int(next.Add(1))); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				os.Stdout.Write([]byte{'.'})
			}
		})
	}
	wg.Wait()
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func init() { programs["callers"] = callersProgram }

func TestKillHTTP1(t *testing.T) {
	testKill(t, httpRow("net/http 1.1", "", func(*http.Protocols) {}, nil))
}

func TestKillHTTP2(t *testing.T) {
	testKill(t, httpRow("net/http h2c", "", func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }, nil))
}

func TestKillGRPC(t *testing.T) { testKill(t, grpcRow("gRPC", nil)) }

// testKill has clients, each a process, that are killed at random, until they have had 10000 answers together, or COMPAT_ANSWERS. The
// server serves on, and nothing is left of them.
func testKill(t *testing.T, r row) {
	const clients = 4
	answers, err := strconv.ParseInt(or(os.Getenv("COMPAT_ANSWERS"), "10000"), 10, 64)
	check(t, err)
	kind := r.name
	r.name += ", clients killed"
	r.does = "4 processes with 8 requests under way each, killed at random and started again until they have had 10 000 answers (1 000 on rxe); " +
		"then 100 requests"
	r.use = func(t *testing.T, n *network) {
		var had, kills atomic.Int64
		together(t, clients, func(int) error {
			for had.Load() < answers {
				k, err := kill(kind, n, time.Duration(10+rand.IntN(300))*time.Millisecond)
				if err != nil {
					return err
				}
				had.Add(k)
				kills.Add(1)
			}
			return nil
		})
		t.Logf("%d answers to %d clients that were killed", had.Load(), kills.Load())
		call, end, err := callers[kind](n.Dialer, n.addr)
		check(t, err)
		defer end()
		together(t, 100, func(i int) error { return call(within(t), i) })
	}
	r.runOn(t, links[1])
}

// kill runs a client for a while after its first answer, kills it, and returns how many answers it had.
func kill(name string, n *network, after time.Duration) (int64, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "COMPAT_PROGRAM=callers", "COMPAT_CALLER="+name, "COMPAT_ADDR="+n.addr)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return 0, err
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(out, first); err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return 0, fmt.Errorf("no answer: %w\n%s", err, &stderr)
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
	defer timer.Stop()
	had, err := io.Copy(io.Discard, out)
	if ended := cmd.Wait(); stderr.Len() > 0 {
		return had, fmt.Errorf("%v\n%s", ended, &stderr)
	}
	return had + 1, err
}

// A transfer goes on while the process starts children.
func TestChildren(t *testing.T) {
	r := httpRow("net/http 1.1 beside children", "4 MiB each way over and over while the process starts children in a loop", func(*http.Protocols) {}, nil)
	r.use = func(t *testing.T, n *network) {
		tr := compat.Transport(n.Dialer)
		defer tr.CloseIdleConnections()
		v := visitor{url: "http://" + n.addr, client: &http.Client{Transport: tr}, major: 1}
		over := make(chan struct{})
		var children, rounds atomic.Int64
		var starting sync.WaitGroup
		starting.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					if err := exec.Command("/bin/true").Run(); err != nil {
						t.Error(err)
					}
					children.Add(1)
				}
			}
		})
		defer starting.Wait()
		defer close(over)
		file := noise(1, fileSize)
		end := time.Now().Add(5 * time.Second)
		together(t, 4, func(int) error {
			for time.Now().Before(end) || children.Load() < 50 {
				if err := v.get("/file", file); err != nil {
					return err
				}
				if err := v.hash(file, bytes.NewReader(file)); err != nil {
					return err
				}
				rounds.Add(1)
			}
			return nil
		})
		t.Logf("%d MiB each way beside %d children", rounds.Load()*fileSize>>20, children.Load())
	}
	r.runOn(t, links[1])
	r.runOn(t, links[2])
}
