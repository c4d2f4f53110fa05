//go:build real

package servers

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

func usePostgres(t *testing.T, n *network) {
	ctx := within(t)
	config, err := pgxpool.ParseConfig("postgres://gopher@" + n.addr + "/postgres?sslmode=disable&pool_max_conns=10")
	check(t, err)
	config.ConnConfig.DialFunc = n.DialContext
	pool, err := pgxpool.NewWithConfig(ctx, config)
	check(t, err)
	defer pool.Close()

	_, err = pool.Exec(ctx, "create table accounts (id int primary key, balance int); create table files (id int primary key, content bytea)")
	check(t, err)
	const rows = 50_000
	copied, err := pool.CopyFrom(ctx, pgx.Identifier{"accounts"}, []string{"id", "balance"}, pgx.CopyFromSlice(rows, func(i int) ([]any, error) {
		return []any{i, i * 3}, nil
	}))
	if err != nil || copied != rows {
		t.Fatal(copied, err)
	}
	all, err := pool.Query(ctx, "select id, balance from accounts order by id")
	check(t, err)
	i, id, balance := 0, 0, 0
	_, err = pgx.ForEachRow(all, []any{&id, &balance}, func() error {
		if id != i || balance != 3*i {
			return fmt.Errorf("row %d is %d, %d", i, id, balance)
		}
		i++
		return nil
	})
	if err != nil || i != rows {
		t.Fatal(i, err)
	}

	want := noise(1, 4<<20)
	_, err = pool.Exec(ctx, "insert into files values (1, $1)", want)
	check(t, err)
	var got []byte
	check(t, pool.QueryRow(ctx, "select content from files").Scan(&got))
	if string(got) != string(want) {
		t.Errorf("%d bytes of %d", len(got), len(want))
	}

	// Each takes one from the same account, as often as PostgreSQL finds that others did too.
	together(t, 10, func(int) error {
		for {
			err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
				var n int
				if err := tx.QueryRow(ctx, "select balance from accounts where id = 100").Scan(&n); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "update accounts set balance = $1 where id = 100", n-1)
				return err
			})
			if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "40001" {
				return err
			}
		}
	})
	check(t, pool.QueryRow(ctx, "select balance from accounts where id = 100").Scan(&balance))
	if balance != 290 {
		t.Error(balance)
	}

	postgresNotifies(t, ctx, pool)
	_, err = pool.Exec(ctx, "select 1/0")
	if pg := (*pgconn.PgError)(nil); !errors.As(err, &pg) || pg.Code != "22012" {
		t.Error(err)
	}

	postgresCancels(t, ctx, pool)

	db := stdlib.OpenDB(*config.ConnConfig)
	check(t, db.QueryRowContext(ctx, "select count(*) from accounts").Scan(&i))
	check(t, db.Close())
	if i != rows {
		t.Error(i)
	}
}

func postgresNotifies(t *testing.T, ctx context.Context, pool *pgxpool.Pool) {
	c, err := pool.Acquire(ctx)
	check(t, err)
	defer c.Release()
	_, err = c.Exec(ctx, "listen news")
	check(t, err)
	go pool.Exec(ctx, "select pg_notify('news', i::text) from generate_series(1, 100) i")
	for i := 1; i <= 100; i++ {
		m, err := c.Conn().WaitForNotification(ctx)
		check(t, err)
		if m.Payload != fmt.Sprint(i) {
			t.Fatalf("notification %d is %q", i, m.Payload)
		}
	}
}

// A query whose context ends is cancelled by a connection of its own. PostgreSQL forgets a cancellation that comes before the query, and
// does not see that the client has gone while it sleeps, so the query has to run by then.
func postgresCancels(t *testing.T, ctx context.Context, pool *pgxpool.Pool) {
	running := func(want int) {
		eventually(t, func() error {
			var n int
			err := pool.QueryRow(ctx, "select count(*) from pg_stat_activity where state = 'active' and query like 'select pg_sleep%'").Scan(&n)
			if err == nil && n != want {
				err = fmt.Errorf("%d queries sleep, not %d", n, want)
			}
			return err
		})
	}
	short, cancel := context.WithCancel(ctx)
	defer cancel()
	slept := make(chan error, 1)
	go func() {
		_, err := pool.Exec(short, "select pg_sleep(1000)")
		slept <- err
	}()
	running(1)
	cancel()
	if err := <-slept; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	running(0)
}
