package servers

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestNATS(t *testing.T) {
	row{
		name: "NATS", modules: []string{"github.com/nats-io/nats-server/v2", "github.com/nats-io/nats.go"},
		does: "the server without a port, by its in-process connections; 2000 messages in order, 1 MiB in one, 200 requests at once to a queue group, " +
			"JetStream with acknowledgements, drain, a reconnect",
		serve: func(t *testing.T, ln net.Listener) {
			s, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir()})
			check(t, err)
			s.Start()
			if !s.ReadyForConnections(patience) {
				t.Fatal("not ready")
			}
			t.Cleanup(func() {
				s.Shutdown()
				s.WaitForShutdown()
			})
			serveConns(t, ln, func(c net.Conn) {
				inner, err := s.InProcessConn()
				if err != nil {
					t.Error(err)
					c.Close()
					return
				}
				bridge(c, inner)
			})
		},
		use: func(t *testing.T, n *network) {
			connect := func(options ...nats.Option) *nats.Conn {
				c, err := nats.Connect("nats://"+n.addr, append(options, nats.SetCustomDialer(n.Dialer), nats.Timeout(patience))...)
				check(t, err)
				t.Cleanup(c.Close)
				return c
			}
			a, b := connect(), connect()
			natsMessages(t, a, b)
			natsRequests(t, a, b)
			natsStream(t, a, b)

			closed := make(chan struct{})
			d := connect(nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
			check(t, d.Publish("none", []byte("last")))
			check(t, d.Drain())
			<-closed

			again := make(chan struct{}, 1)
			d = connect(nats.ReconnectWait(time.Millisecond), nats.ReconnectHandler(func(*nats.Conn) { again <- struct{}{} }))
			sub, err := d.SubscribeSync("after")
			check(t, err)
			check(t, d.ForceReconnect())
			<-again
			check(t, d.Flush())
			check(t, a.Publish("after", []byte("the reconnect")))
			_, err = sub.NextMsg(patience)
			check(t, err)
		},
	}.run(t)
}

func natsMessages(t *testing.T, a, b *nats.Conn) {
	sub, err := b.SubscribeSync("news.*")
	check(t, err)
	check(t, b.Flush())
	for i := range 2000 {
		check(t, a.Publish("news."+strconv.Itoa(i), noise(uint64(i), i)))
	}
	big := noise(1, int(a.MaxPayload()))
	check(t, a.Publish("news.big", big))
	if err := a.Publish("news.more", append(big, 0)); !errors.Is(err, nats.ErrMaxPayload) {
		t.Error(err)
	}
	for i := range 2000 {
		m, err := sub.NextMsg(patience)
		check(t, err)
		if m.Subject != "news."+strconv.Itoa(i) || !bytes.Equal(m.Data, noise(uint64(i), i)) {
			t.Fatalf("message %d is %s with %d bytes", i, m.Subject, len(m.Data))
		}
	}
	m, err := sub.NextMsg(patience)
	check(t, err)
	if !bytes.Equal(m.Data, big) {
		t.Errorf("%d bytes of %d", len(m.Data), len(big))
	}
	check(t, sub.Unsubscribe())
}

func natsRequests(t *testing.T, a, b *nats.Conn) {
	var answered [2]atomic.Int64
	for i := range answered {
		_, err := b.QueueSubscribe("double", "workers", func(m *nats.Msg) {
			answered[i].Add(1)
			m.Respond(append(m.Data, m.Data...))
		})
		check(t, err)
	}
	check(t, b.Flush())
	together(t, 200, func(i int) error {
		want := noise(uint64(i), i)
		m, err := a.Request("double", want, patience)
		if err != nil {
			return err
		}
		if !bytes.Equal(m.Data, append(want, want...)) {
			return fmt.Errorf("%d bytes for %d", len(m.Data), i)
		}
		return nil
	})
	if x, y := answered[0].Load(), answered[1].Load(); x+y != 200 || x == 0 || y == 0 {
		t.Errorf("%d and %d answers", x, y)
	}
	if _, err := a.Request("nobody", nil, patience); !errors.Is(err, nats.ErrNoResponders) {
		t.Error(err)
	}
}

func natsStream(t *testing.T, a, b *nats.Conn) {
	ctx := within(t)
	js, err := jetstream.New(a)
	check(t, err)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage})
	check(t, err)
	for i := range 100 {
		_, err := js.Publish(ctx, "orders.new", []byte(strconv.Itoa(i)))
		check(t, err)
	}
	js, err = jetstream.New(b)
	check(t, err)
	consumer, err := js.CreateConsumer(ctx, "orders", jetstream.ConsumerConfig{Durable: "one", AckPolicy: jetstream.AckExplicitPolicy})
	check(t, err)
	for i := 0; i < 100; {
		batch, err := consumer.Fetch(25)
		check(t, err)
		for m := range batch.Messages() {
			if string(m.Data()) != strconv.Itoa(i) {
				t.Fatalf("order %d is %q", i, m.Data())
			}
			check(t, m.DoubleAck(ctx))
			i++
		}
		check(t, batch.Error())
	}
	info, err := consumer.Info(ctx)
	check(t, err)
	if info.NumAckPending != 0 || info.NumPending != 0 {
		t.Errorf("%d and %d pending", info.NumAckPending, info.NumPending)
	}
}
