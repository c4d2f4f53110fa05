/*
 * The times of round trips over an rsocket: rstream tells only their mean.
 *
 *	roundtrips listen ADDRESS PORT SIZE TIMES
 *	roundtrips dial ADDRESS PORT SIZE TIMES    prints the seconds that all took, then 200 quantiles of one way in µs
 *
 * As rstream does it: buffers of 512 KiB, 16 bytes each way first, and calls that do not wait, again and again. The quantiles
 * are those of bench/stream.
 */
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUFFER = 512 << 10, SYNC = 16, QUANTILES = 200 };

static char *buf;

static void die(const char *what)
{
	fprintf(stderr, "roundtrips: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void send_all(int s, int size)
{
	int done, n;

	for (done = 0; done < size; done += n) {
		do
			n = rsend(s, buf + done, size - done, MSG_DONTWAIT);
		while (n < 0 && errno == EAGAIN);
		if (n < 0)
			die("send");
	}
}

static void receive_all(int s, int size)
{
	int done, n;

	for (done = 0; done < size; done += n) {
		do
			n = rrecv(s, buf + done, size - done, MSG_DONTWAIT);
		while (n < 0 && errno == EAGAIN);
		if (n == 0)
			errno = EPIPE;
		if (n <= 0)
			die("receive");
	}
}

static void ask(int s, int size)
{
	send_all(s, size);
	receive_all(s, size);
}

static void answer(int s, int size)
{
	receive_all(s, size);
	send_all(s, size);
}

/* What raccept returns has the settings of the socket that listens. */
static int new_socket(const struct addrinfo *at)
{
	int s = rsocket(at->ai_family, SOCK_STREAM, 0);
	int size = BUFFER, on = 1;

	if (s < 0 || rsetsockopt(s, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) ||
	    rsetsockopt(s, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)) ||
	    rsetsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)))
		die("socket");
	return s;
}

static void end(int s)
{
	if (rshutdown(s, SHUT_RDWR) || rclose(s))
		die("close");
}

static void serve(const struct addrinfo *at, int size, int times)
{
	int ln = new_socket(at), s;

	if (rbind(ln, at->ai_addr, at->ai_addrlen) || rlisten(ln, 1))
		die("listen");
	s = raccept(ln, NULL, NULL);
	if (s < 0)
		die("accept");
	answer(s, SYNC);
	while (times--)
		answer(s, size);
	end(s);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* call returns the seconds that all took, and puts those of each into took. */
static double call(const struct addrinfo *to, int size, int times, double *took)
{
	int i, s = new_socket(to);
	double start, last, t;

	if (rconnect(s, to->ai_addr, to->ai_addrlen))
		die("connect");
	ask(s, SYNC);
	start = last = now();
	for (i = 0; i < times; i++) {
		ask(s, size);
		t = now();
		took[i] = t - last;
		last = t;
	}
	end(s);
	return last - start;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM };
	struct addrinfo *at;
	int size = argc == 6 ? atoi(argv[4]) : 0;
	int times = argc == 6 ? atoi(argv[5]) : 0;
	double *took;
	long i;

	if (size < 1 || times < 1 || getaddrinfo(argv[2], argv[3], &hints, &at)) {
		fprintf(stderr, "usage: roundtrips listen|dial ADDRESS PORT SIZE TIMES\n");
		return 2;
	}
	buf = calloc(1, size > SYNC ? size : SYNC);
	took = calloc(times, sizeof(*took));
	if (!buf || !took)
		die("memory");
	if (!strcmp(argv[1], "listen")) {
		serve(at, size, times);
		return 0;
	}
	printf("%.6f\n", call(at, size, times, took));
	qsort(took, times, sizeof(*took), compare);
	for (i = 0; i < QUANTILES; i++)
		printf("%.3f\n", took[(2 * i + 1) * times / (2 * QUANTILES)] * 1e6 / 2);
	return 0;
}
