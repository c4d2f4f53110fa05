package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

const redisDoes = "20 clients on a pool, values to 4 MiB, a pipeline, transactions that conflict, Lua, publish and subscribe, a blocking pop, timeouts"

func TestRedis(t *testing.T) {
	row{
		name: "Redis, miniredis", modules: []string{"github.com/redis/go-redis/v9", "github.com/alicebob/miniredis/v2"}, does: redisDoes,
		serve: func(t *testing.T, ln net.Listener) {
			m := miniredis.NewMiniRedis()
			first, err := m.Dial() // it starts with that
			check(t, err)
			t.Cleanup(m.Close)
			t.Cleanup(func() { first.Close() })
			serveConns(t, ln, func(c net.Conn) {
				inner, err := m.Dial()
				check(t, err)
				bridge(c, inner)
			})
		},
		// miniredis waits until its answers are taken, and go-redis takes them when all of a pipeline is written: what is under way
		// has to fit the rings. The real one keeps its answers.
		use: func(t *testing.T, n *network) { useRedis(t, n, 200) },
	}.run(t)
}

func useRedis(t *testing.T, n *network, pipeline int) {
	ctx := within(t)
	r := redis.NewClient(&redis.Options{Addr: n.addr, Dialer: n.DialContext, PoolSize: 20, ReadTimeout: patience, WriteTimeout: patience})
	defer func() { check(t, r.Close()) }()
	check(t, r.FlushDB(ctx).Err())

	together(t, 20, func(i int) error {
		key, want := fmt.Sprint("k", i), string(noise(uint64(i), i*10_000))
		if i == 19 {
			want = string(noise(19, 4<<20))
		}
		if err := r.Set(ctx, key, want, 0).Err(); err != nil {
			return err
		}
		got, err := r.Get(ctx, key).Result()
		if err != nil || got != want {
			return fmt.Errorf("%d bytes of %d, %w", len(got), len(want), err)
		}
		return nil
	})
	if err := r.Get(ctx, "none").Err(); err != redis.Nil {
		t.Error(err)
	}

	commands, err := r.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range pipeline {
			p.RPush(ctx, "list", i)
		}
		return nil
	})
	check(t, err)
	for i, c := range commands {
		if c.(*redis.IntCmd).Val() != int64(i+1) {
			t.Fatal(i, c)
		}
	}
	list, err := r.LRange(ctx, "list", 0, -1).Result()
	if err != nil || len(list) != pipeline || list[pipeline-1] != strconv.Itoa(pipeline-1) {
		t.Error(len(list), err)
	}

	together(t, 8, func(int) error { return increment(ctx, r) })
	if n, err := r.Get(ctx, "counter").Int(); n != 8 || err != nil {
		t.Error(n, err)
	}
	if sum, err := r.Eval(ctx, "return redis.call('incrby', KEYS[1], ARGV[1])", []string{"counter"}, 34).Int(); sum != 42 || err != nil {
		t.Error(sum, err)
	}
	redisMessages(t, ctx, r)
	redisBlocks(t, ctx, r)
}

// increment adds one to the counter by a transaction, as often as that takes.
func increment(ctx context.Context, r *redis.Client) error {
	for {
		err := r.Watch(ctx, func(tx *redis.Tx) error {
			n, err := tx.Get(ctx, "counter").Int()
			if err != nil && err != redis.Nil {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Set(ctx, "counter", n+1, 0).Err() })
			return err
		}, "counter")
		if !errors.Is(err, redis.TxFailedErr) {
			return err
		}
	}
}

func redisMessages(t *testing.T, ctx context.Context, r *redis.Client) {
	sub := r.Subscribe(ctx, "news")
	defer sub.Close()
	_, err := sub.Receive(ctx)
	check(t, err)
	go func() {
		for i := range 200 {
			r.Publish(ctx, "news", i)
		}
	}()
	for i := range 200 {
		m, err := sub.ReceiveMessage(ctx)
		check(t, err)
		if m.Payload != strconv.Itoa(i) {
			t.Fatalf("message %d is %q", i, m.Payload)
		}
	}
}

func redisBlocks(t *testing.T, ctx context.Context, r *redis.Client) {
	popped := make(chan error, 1)
	go func() {
		got, err := r.BLPop(ctx, patience, "queue").Result()
		if err == nil && (len(got) != 2 || got[1] != "at last") {
			err = fmt.Errorf("%q", got)
		}
		popped <- err
	}()
	select {
	case err := <-popped:
		t.Fatal("nothing to pop: ", err)
	case <-time.After(50 * time.Millisecond):
	}
	check(t, r.RPush(ctx, "queue", "at last").Err())
	check(t, <-popped)

	// The connection of a call that takes too long is given up, and others serve on.
	impatient := redis.NewClient(&redis.Options{Addr: r.Options().Addr, Dialer: r.Options().Dialer, ContextTimeoutEnabled: true, MaxRetries: -1})
	defer impatient.Close()
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	err := impatient.BLPop(short, 0, "nothing").Err()
	if netErr := net.Error(nil); !errors.Is(err, context.DeadlineExceeded) && !(errors.As(err, &netErr) && netErr.Timeout()) {
		t.Error(err)
	}
	check(t, impatient.Ping(ctx).Err())
}
