package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/hooks/auth"
	"github.com/mochi-mqtt/server/v2/listeners"
)

func TestMQTT(t *testing.T) {
	row{
		name: "MQTT", modules: []string{"github.com/mochi-mqtt/server/v2", "github.com/eclipse/paho.mqtt.golang"},
		does: "QoS 0, 1 and 2 with 200 messages each in order, 1 MiB in one, a retained message, a will when a client breaks off",
		serve: func(t *testing.T, ln net.Listener) {
			s := mqtt.New(&mqtt.Options{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			check(t, s.AddHook(new(auth.AllowHook), nil))
			check(t, s.AddListener(listeners.NewNet("rdma", ln)))
			check(t, s.Serve())
			t.Cleanup(func() { check(t, s.Close()) })
		},
		use: func(t *testing.T, n *network) {
			connect := func(name string, change func(*paho.ClientOptions)) paho.Client {
				o := paho.NewClientOptions().AddBroker("tcp://" + n.addr).SetClientID(name).SetAutoReconnect(false)
				o.SetCustomOpenConnectionFn(func(uri *url.URL, _ paho.ClientOptions) (net.Conn, error) { return n.Dial("tcp", uri.Host) })
				change(o)
				c := paho.NewClient(o)
				check(t, done(c.Connect()))
				t.Cleanup(func() { c.Disconnect(250) })
				return c
			}
			plain := func(*paho.ClientOptions) {}
			a := connect("a", plain)
			b := connect("b", plain)

			got := make(chan paho.Message, 1000)
			check(t, done(b.Subscribe("#", 2, func(_ paho.Client, m paho.Message) { got <- m })))
			next := func(topic string, want []byte) {
				t.Helper()
				select {
				case m := <-got:
					if m.Topic() != topic || !bytes.Equal(m.Payload(), want) {
						t.Fatalf("%s with %d bytes, want %s with %d", m.Topic(), len(m.Payload()), topic, len(want))
					}
				case <-time.After(patience):
					t.Fatal("no message of ", topic)
				}
			}
			for qos := range byte(3) {
				topic := fmt.Sprint("qos/", qos)
				sent := make([]paho.Token, 200)
				for i := range sent {
					sent[i] = a.Publish(topic, qos, false, noise(uint64(i), i))
				}
				for i, token := range sent {
					check(t, done(token))
					next(topic, noise(uint64(i), i))
				}
			}
			big := noise(1, 1<<20)
			check(t, done(a.Publish("big", 1, false, big)))
			next("big", big)

			check(t, done(a.Publish("state", 1, true, []byte("retained"))))
			next("state", []byte("retained"))
			late := connect("late", plain)
			state := make(chan paho.Message, 1)
			check(t, done(late.Subscribe("state", 1, func(_ paho.Client, m paho.Message) { state <- m })))
			if m := <-state; !m.Retained() || string(m.Payload()) != "retained" {
				t.Errorf("%v, %q", m.Retained(), m.Payload())
			}

			// Between this client and its connection there is a pipe: paho takes no notice of a connection that is closed behind it.
			lost, inner, outer := make(chan struct{}), net.Conn(nil), net.Conn(nil)
			connect("mortal", func(o *paho.ClientOptions) {
				o.SetWill("will", "to all", 1, false)
				o.SetConnectionLostHandler(func(paho.Client, error) { close(lost) })
				o.SetCustomOpenConnectionFn(func(uri *url.URL, _ paho.ClientOptions) (c net.Conn, err error) {
					c, inner = net.Pipe()
					if outer, err = n.Dial("tcp", uri.Host); err == nil {
						go bridge(inner, outer)
					}
					return c, err
				})
			})
			check(t, outer.(interface{ SetLinger(int) error }).SetLinger(0))
			check(t, outer.Close())
			next("will", []byte("to all"))
			<-lost
		},
	}.run(t)
}

// done waits for what a client does.
func done(token paho.Token) error {
	if !token.WaitTimeout(patience) {
		return errors.New("takes too long")
	}
	return token.Error()
}
